"""Parity with a published trainer's objective where definitions agree: cross-entropy with decay, and KL with decay.

Public formulas (speculators 0.9, its DFlash loss): row k of a block, k >= 1, weighs exp(-(k - 1) / gamma); cross-entropy is taken
against the teacher's argmax; the sum of weighted losses is divided by the number of rows that count. Here the label is the
document's token, and the divisor is the sum of weights (one ratio over all ranks): with labels set to the teacher's argmax
both are the same sum, over another divisor that no parameter moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import run_ranks
from tp_dflash.blocks import block_position_weights
from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss

ANCHORS, BLOCK, WIDTH, VOCABULARY, GAMMA = 6, 5, 8, 29, 3.0


@dataclass(frozen=True)
class Batch:
    """One batch, fp64: hidden rows, the teacher's hidden rows, one head of each, rows that count."""

    hidden_ND: Tensor
    teacher_ND: Tensor
    drafter_VD: Tensor
    teacher_VD: Tensor
    counts_N: Tensor

    @staticmethod
    def draw() -> Batch:
        generator = torch.Generator().manual_seed(7)
        rows = ANCHORS * BLOCK
        hidden, teacher = (torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
        heads = [torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)]
        counts = torch.rand(rows, generator=generator) < 0.8
        counts[::BLOCK] = False
        return Batch(hidden, teacher, heads[0], heads[1], counts)

    @property
    def teacher_choice_N(self) -> Tensor:
        return (self.teacher_ND @ self.teacher_VD.T).argmax(1)


def published(batch: Batch, loss: str) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients by the published formulas, on whole logits."""
    hidden, head = batch.hidden_ND.clone().requires_grad_(), batch.drafter_VD.clone().requires_grad_()
    logits_NV, teacher_NV = hidden @ head.T, batch.teacher_ND @ batch.teacher_VD.T
    log_q_NV = logits_NV.log_softmax(1)
    if loss == "ce":
        each_N = -log_q_NV.gather(1, teacher_NV.argmax(1, keepdim=True))[:, 0]
    else:
        log_p_NV = teacher_NV.log_softmax(1)
        each_N = (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(1)
    k_N = torch.arange(ANCHORS * BLOCK) % BLOCK
    decay_N = torch.exp(-(k_N - 1).double() / GAMMA)
    total = (each_N * decay_N)[batch.counts_N].sum() / batch.counts_N.sum()
    total.backward()
    assert hidden.grad is not None
    assert head.grad is not None
    return total.detach(), hidden.grad, head.grad


def _ours(rank: int, loss: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sharded loss over the same divisor; the first rank brings all rows."""
    batch = Batch.draw()
    vocab = VocabRange.split(VOCABULARY, size)[rank]
    mine = slice(None) if rank == 0 else slice(0, 0)
    hidden = batch.hidden_ND[mine].clone().requires_grad_()
    head = batch.drafter_VD[vocab.start : vocab.stop].clone().requires_grad_()
    weights_B = block_position_weights(BLOCK, "decay", GAMMA).double()
    weights_N = torch.where(batch.counts_N, weights_B.repeat(ANCHORS), 0.0)[mine]
    found = sharded_head_loss(
        hidden,
        batch.teacher_ND[mine],
        torch.arange(ANCHORS * BLOCK)[mine],
        batch.teacher_choice_N[mine],
        weights_N,
        drafter_head=HeadShard(head, vocab),
        teacher_head=HeadShard(batch.teacher_VD[vocab.start : vocab.stop], vocab),
        objective=Objective(ce=1.0, kl=0.0) if loss == "ce" else Objective(ce=0.0, kl=1.0),
        block_size=BLOCK,
        group=dist.group.WORLD,
        chunk_rows=7,
    )
    scaled = found.loss_sum / batch.counts_N.sum()
    scaled.backward()
    assert hidden.grad is not None
    assert head.grad is not None
    return scaled.detach(), hidden.grad, head.grad


@pytest.mark.parametrize("loss", ["ce", "kl"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_loss_and_gradients_are_those_of_the_published_formulas(loss: str, size: int) -> None:
    expected, hidden_gradient, head_gradient = published(Batch.draw(), loss)
    results = run_ranks(_ours, size, loss, size)
    # Weights are fp32 numbers, exp(-(k - 1) / gamma) rounded: what is left is that rounding.
    torch.testing.assert_close(results[0][0], expected, rtol=1e-7, atol=0)
    torch.testing.assert_close(results[0][1], hidden_gradient, rtol=0, atol=1e-8)
    torch.testing.assert_close(torch.cat([result[2] for result in results]), head_gradient, rtol=0, atol=1e-8)
