"""What only a GPU can show: kernels at real sizes, offsets beyond 2^31, no wait for the host. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.head.problem import Problem, expected
from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadLoss, HeadShard, VocabRange, sharded_head_loss

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BLEND = Objective(ce=0.3, kl=0.2, reverse_kl=0.1, js=0.4, tv=0.2, lk=0.3, nla=0.2, cap=0.1, temperature=1.3)


def on_gpu(problem: Problem) -> tuple[HeadLoss, torch.Tensor, torch.Tensor]:
    """A problem of one rank on the GPU: result, hidden gradient, head gradient."""
    drafter, teacher = (head.cuda() for head in problem.heads())
    rows = [row.cuda() for row in problem.rows_of(0)]
    hidden, weight = rows[0].requires_grad_(), drafter.requires_grad_()
    vocab = VocabRange(0, problem.vocabulary, problem.vocabulary)
    result = sharded_head_loss(
        hidden,
        *rows[1:],
        drafter_head=HeadShard(weight, vocab),
        teacher_head=HeadShard(teacher, vocab),
        objective=problem.objective,
        block_size=problem.block_size,
        chunk_rows=problem.chunk_rows,
        active_rows=int((rows[4] != 0).sum()) + 1 if problem.bucket else None,
        teacher_rows=rows[1].shape[0] if problem.shared else None,
    )
    result.loss_sum.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return result, hidden.grad, weight.grad


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(4097, torch.bfloat16), (12_289, torch.bfloat16), (4097, torch.float32)]
)
def test_equals_the_oracle(vocabulary: int, dtype: torch.dtype) -> None:
    for bucket in (False, True):
        problem = Problem(
            1, num_blocks=40, vocabulary=vocabulary, width=64, objective=BLEND, dtype=dtype, trained=True,
            scale=0.2, chunk_rows=48, bucket=bucket, shared=bucket,
        )  # fmt: skip
        result, hidden_grad, weight_grad = on_gpu(problem)
        want = expected(problem)
        torch.testing.assert_close(result.loss_sum.double().cpu(), want["loss_sum"], rtol=1e-4, atol=1e-4)
        for got, wanted in ((hidden_grad, want["hidden_grad"]), (weight_grad, want["weight_grad"])):
            assert (got.double().cpu() - wanted).norm() / wanted.norm() < 6e-3
        for name in ("kl_N", "alpha_N", "entropy_N", "label_logprob_N"):
            got = result.statistics.tensors()[name].double().cpu()
            torch.testing.assert_close(got, want["statistics"][name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_logit_far_above_the_first_block() -> None:
    """The sums start from the first block's maximum; a row that leaves fp32's range from there is read again."""
    vocabulary, width = 12_000, 64
    weight = torch.zeros(vocabulary, width, device="cuda", dtype=torch.bfloat16)
    weight[11_000] = 4.0
    shard = HeadShard(weight, VocabRange(0, vocabulary, vocabulary))
    result = sharded_head_loss(
        torch.ones(4, width, device="cuda", dtype=torch.bfloat16),
        torch.ones(4, width, device="cuda", dtype=torch.bfloat16),
        torch.arange(4, device="cuda"),
        torch.tensor([0, 11_000, 1, 11_999], device="cuda"),
        torch.ones(4, device="cuda"),
        drafter_head=shard,
        teacher_head=shard,
        objective=Objective(ce=1.0, kl=0.0),
        block_size=4,
    )
    assert result.statistics.loss_N.tolist() == [256.0, 0.0, 256.0, 256.0]
    assert result.statistics.argmax_N.tolist() == [11_000] * 4


def test_offsets_beyond_two_to_the_31st() -> None:
    """16,384 rows x 248,320 in one chunk are 4.07e9 logits; the last rows must be those of a small chunk."""
    rows, vocabulary, width = 16_384, 248_320, 64
    generator = torch.Generator("cuda").manual_seed(0)
    weight = (torch.randn(vocabulary, width, generator=generator, device="cuda") * 0.1).bfloat16()
    hidden = torch.randn(rows, width, generator=generator, device="cuda").bfloat16()
    teacher = torch.randn(rows, width, generator=generator, device="cuda").bfloat16()
    labels = torch.randint(vocabulary, (rows,), generator=generator, device="cuda")
    found = []
    for chunk_rows in (rows, 512):
        own = hidden.clone().requires_grad_()
        shard = HeadShard(weight, VocabRange(0, vocabulary, vocabulary))
        result = sharded_head_loss(
            own, teacher, torch.arange(rows, device="cuda"), labels, torch.ones(rows, device="cuda"),
            drafter_head=shard, teacher_head=shard, objective=Objective(), block_size=8, chunk_rows=chunk_rows,
        )  # fmt: skip
        result.loss_sum.backward()
        assert own.grad is not None
        found.append((own.grad[-64:].float(), result.statistics.kl_N[-64:], result.statistics.label_rank_N[-64:]))
    (grad, kl, rank), (small_grad, small_kl, small_rank) = found
    assert (grad - small_grad).norm() / small_grad.norm() < 4e-3
    torch.testing.assert_close(kl, small_kl, rtol=1e-4, atol=1e-6)
    assert (rank - small_rank).abs().max() <= 8


def test_nothing_waits_for_the_device() -> None:
    problem = Problem(1, num_blocks=40, vocabulary=5000, width=64, dtype=torch.bfloat16, chunk_rows=48)
    drafter, teacher = (head.cuda() for head in problem.heads())
    rows = [row.cuda() for row in problem.rows_of(0)]
    vocab = VocabRange(0, problem.vocabulary, problem.vocabulary)
    hidden = rows[0].requires_grad_()

    def step() -> None:
        sharded_head_loss(
            hidden, *rows[1:], drafter_head=HeadShard(drafter, vocab), teacher_head=HeadShard(teacher, vocab),
            objective=Objective(weights="dpace", js=0.2), block_size=4, chunk_rows=48, active_rows=120,
            teacher_rows=rows[1].shape[0],
        ).loss_sum.backward()  # fmt: skip

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
