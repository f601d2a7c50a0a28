"""Run by test_triton_passes.py in a process of its own with TRITON_INTERPRET=1: kernels against plain torch, on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from tests.head.problem import Problem, expected, sharded
from tp_dflash.config.objective import Objective
from tp_dflash.head import VocabRange, head_call
from tp_dflash.head.passes import ChunkLogits
from tp_dflash.head.row_coefficients import row_coefficients
from tp_dflash.head.torch_passes import TorchPasses
from tp_dflash.head.triton_passes import KernelShape, TritonPasses

SHAPE = KernelShape(block=32, warps=1, programs=3)
BLEND = Objective(ce=0.3, kl=0.2, reverse_kl=0.1, js=0.4, tv=0.2, lk=0.3, nla=0.2, cap=0.1, temperature=0.7)


def chunk(width: int, start: int, dtype: torch.dtype) -> ChunkLogits:
    """Logits in padded buffers whose padding is NaN; equal maxima, a label on either edge, rows that share a teacher."""
    generator = torch.Generator().manual_seed(width)
    padded = -(-max(width, 1) // 64) * 64
    drafter = torch.full((5, padded), float("nan"), dtype=dtype)
    teacher = torch.full((4, padded), float("nan"), dtype=dtype)
    drafter[:, :width] = 3 * torch.randn((5, width), generator=generator).to(dtype)
    teacher[:, :width] = 3 * torch.randn((4, width), generator=generator).to(dtype)
    if width > 3:
        drafter[1, [1, 3]] = 50.0
        teacher[2, [0, width - 1]] = 50.0
        drafter[0, :width] = teacher[3, :width]
    labels = torch.tensor([start, start + width - 1, start + width, -1, start + width // 2])
    return ChunkLogits(
        drafter_Cv=drafter[:, :width],
        teacher_Sv=teacher[:, :width],
        slot_C=torch.tensor([3, 3, 0, 1, 2]),
        labels_C=labels,
        vocab=VocabRange(start, start + width, 10_000),
        inverse_temperature=1 / 0.7,
    )


def check_passes(width: int, start: int, dtype: torch.dtype, gradient_dtype: torch.dtype, objective: Objective) -> None:
    logits, plain = chunk(width, start, dtype), TorchPasses()
    kernels = TritonPasses(objective, gradient_dtype, SHAPE, SHAPE)
    tolerance = {"rtol": 2e-5, "atol": 2e-6}
    statistics = plain.statistics(logits)
    got = kernels.statistics(logits)
    if width:
        torch.testing.assert_close(got, statistics, **tolerance)
    other = plain.statistics(replace(chunk(40, 5000, torch.float32), labels_C=logits.labels_C))
    gathered = torch.stack([got, other])
    merged = plain.merge(gathered)
    torch.testing.assert_close(kernels.merge(gathered), merged, **tolerance)
    overlap = plain.overlaps(logits, merged)
    torch.testing.assert_close(kernels.overlaps(logits, merged), overlap, **tolerance)
    coefficients = row_coefficients(objective, torch.linspace(0.0, 2.0, 5), merged, overlap, logits.labels_C)
    expected_grad, expected_measured = plain.gradient(logits, merged, coefficients)
    _, measured = kernels.gradient(logits, merged, None)
    torch.testing.assert_close(measured, expected_measured, **tolerance)
    grad, measured = kernels.gradient(logits, merged, coefficients)
    torch.testing.assert_close(measured, expected_measured, **tolerance)
    assert grad.data_ptr() == logits.drafter_Cv.data_ptr(), "the gradient takes the place of the logits"
    torch.testing.assert_close(grad, expected_grad.to(gradient_dtype), rtol=8e-3, atol=1e-5)


def check_whole_loss() -> None:
    """The sharded loss itself with the kernels in it, bf16 rows and fp32 logits, against the fp64 oracle."""
    head_call.pick_passes = lambda objective, operands, device: TritonPasses(objective, operands, SHAPE, SHAPE)
    problem = Problem(
        1, objective=BLEND, dtype=torch.bfloat16, vocabulary=70, width=64, bucket=True, shared=True, scale=0.2
    )
    got, want = sharded(0, problem), expected(problem)
    error = (got["hidden_grad"].double() - want["hidden_grad"]).norm() / want["hidden_grad"].norm()
    assert error < 5e-3, error
    torch.testing.assert_close(got["loss_sum"].double(), want["loss_sum"], rtol=1e-5, atol=0)
    for name in ("label_rank_N", "teacher_rank_N", "argmax_N", "teacher_argmax_N"):
        assert torch.equal(got["statistics"][name], want["statistics"][name]), name


if __name__ == "__main__":
    objectives = (Objective(ce=0.4, kl=0.6), BLEND)
    for width, objective in itertools.product((0, 1, 31, 70, 128), objectives):
        check_passes(width, 128, torch.float32, torch.bfloat16, objective)
    check_passes(70, 7, torch.bfloat16, torch.bfloat16, BLEND)
    check_passes(70, 7, torch.float32, torch.float32, BLEND)
    check_whole_loss()
    print("kernels agree")
