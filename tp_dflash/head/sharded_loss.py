"""The head loss whose vocabulary is sharded over a group: the room's front door.

Comes in: hidden rows, teacher hidden rows, labels, weights, one shard of each head, a process group. Goes out: ``HeadLoss``.
Gradients are made in the forward pass; the backward pass holds no collective and only scales, out of place.

| tensor | who holds it |
|---|---|
| hidden_ND, labels_N, weights_N, teacher_hidden_UD | each rank its own rows; a head-only rank none |
| head weights | each rank its vocab range, for the rows of all ranks |
| logits (C, v) | each rank its range, C rows of all ranks at a time |
| loss_sum, weight_sum, statistics, hidden gradient | each rank those of its own rows |
| head gradient | each rank that of its range, summed over the rows of all ranks |
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.config.objective import Objective
from tp_dflash.head.agreement import exchange_facts
from tp_dflash.head.call_facts import CallFacts
from tp_dflash.head.head_call import CallResult, HeadCall
from tp_dflash.head.head_loss import HeadLoss
from tp_dflash.head.head_shard import HeadShard
from tp_dflash.head.row_exchange import RowExchange

LogitsPrecision = Literal["float32", "bfloat16"]


def sharded_head_loss(
    hidden_ND: Tensor,
    teacher_hidden_UD: Tensor,
    teacher_index_N: Tensor,
    labels_N: Tensor,
    weights_N: Tensor,
    *,
    drafter_head: HeadShard,
    teacher_head: HeadShard,
    objective: Objective,
    block_size: int,
    group: ProcessGroup | None = None,
    chunk_rows: int = 1024,
    active_rows: int | None = None,
    teacher_rows: int | None = None,
    host_group: ProcessGroup | None = None,
    logits_precision: LogitsPrecision = "float32",
) -> HeadLoss:
    """Loss, statistics and gradients of drafted rows against a teacher and labels, vocabulary sharded over ``group``.

    Every rank of the group makes this call with its own rows and its own shards. N is equal on all ranks that bring rows;
    a head-only rank passes N = 0 (hidden of shape (0, D)).

    Args:
        hidden_ND: the drafter's output rows after its final norm, in whole blocks. bf16, fp32 or fp64.
        teacher_hidden_UD: the target's hidden states after its final norm, one for each unique teacher position.
        teacher_index_N: int64, which of this rank's U teacher rows belongs to a row.
        labels_N: int64 token ids; anything where the weight is 0.
        weights_N: finite, >= 0; 0 marks a row that is not valid. With ``objective.weights == "dpace"`` only that mark counts.
        drafter_head, teacher_head: this rank's shards, cut alike. May be one tensor. If the drafter head's weight requires
            a gradient it is trained: keep it in fp32, products use it rounded to the hidden rows' dtype.
        objective: the blend; ``kl`` and ``ce`` cost one exchange a chunk, the others one more.
        block_size: B; rows b B .. b B + B - 1 are block b.
        group: the ranks that share the vocabulary; None for a world of one.
        chunk_rows: rows, of all ranks together, whose logits exist at once.
        active_rows: bucket of rows of weight above 0 a rank, equal on all ranks, from what the host knows: all other rows
            are left out of the products. None: every row is computed.
        teacher_rows: bucket of used teacher rows a rank, equal on all ranks: each is projected once. The rows of one
            teacher row must belong to different blocks, no more of them than ``block_size``, as distinct anchors give. None:
            every row projects its own teacher row, whatever the index.
        host_group: a group with a CPU backend of at least the ranks of ``group``, all of which make this call; shapes are
            compared over it. Without it ``group`` itself is used; if that has no CPU backend the comparison waits for the
            GPU, so give one there.
        logits_precision: "bfloat16" rounds the logits to bf16: faster, and wrong near convergence (see docs/numerics.md).

    Returns:
        HeadLoss: sums over this rank's own rows, never means. Scale the loss by what all ranks share (1 / the global sum of
        weights): a trained head's gradient is that of the sum over all ranks, times this rank's upstream gradient.

    Raises:
        ValueError: on every rank alike, if shapes, dtypes, shards or settings do not fit together. On the CPU also at once
            for labels, indices, weights and buckets that are out of range; on a GPU those make the loss NaN, and
            ``HeadLoss.raise_faults`` says why.
    """
    rows = (hidden_ND, teacher_hidden_UD, teacher_index_N, labels_N, weights_N)
    differentiates = torch.is_grad_enabled()
    facts = CallFacts.collect(
        rows,
        drafter_head,
        teacher_head,
        wants_hidden=differentiates and hidden_ND.requires_grad,
        wants_weight=differentiates and drafter_head.weight_vD.requires_grad,
        block_size=block_size,
        chunk_rows=chunk_rows,
        active_rows=active_rows,
        teacher_rows=teacher_rows,
        settings=f"{objective.model_dump_json()} {logits_precision}",
    )
    everyone = exchange_facts(facts, group, host_group)
    exchange = RowExchange(
        group,
        size=len(everyone),
        rank=0 if group is None else dist.get_rank(group),
        row_ranks=tuple(rank for rank, facts in enumerate(everyone) if facts.num_rows),
    )
    call = HeadCall(
        everyone=everyone,
        exchange=exchange,
        drafter_head=drafter_head,
        teacher_head=teacher_head,
        objective=objective,
        block_size=block_size,
        chunk_rows=chunk_rows,
        active_rows=active_rows,
        teacher_rows=teacher_rows,
        logits_dtype=torch.bfloat16 if logits_precision == "bfloat16" else None,
    )
    with torch.no_grad():
        result = call.run(rows)
    return HeadLoss(
        loss_sum=_attach(result, hidden_ND, drafter_head.weight_vD),
        weight_sum=result.weight_sum,
        statistics=result.statistics,
        faults=result.faults,
        row_ranks=exchange.row_ranks,
        vocabulary=drafter_head.vocab.total,
    )


def _attach(result: CallResult, hidden_ND: Tensor, weight_vD: Tensor) -> Tensor:
    """The loss as a node of the graph, with gradients that already exist."""
    grad_vD = result.grad_vD
    if grad_vD is not None and grad_vD.shape[0] < weight_vD.shape[0]:
        grad_vD = torch.cat([grad_vD, grad_vD.new_zeros((weight_vD.shape[0] - grad_vD.shape[0], grad_vD.shape[1]))])
    return _MadeInForward.apply(hidden_ND, weight_vD, result.loss_sum, result.grad_ND, grad_vD)


class _MadeInForward(torch.autograd.Function):
    """A scalar whose gradients came with it.

    Holds until backward: grad_ND (own rows, in the rows' dtype) and grad_vD (own range, fp32). Backward multiplies each by
    the upstream gradient into a new tensor, so it can run twice, and exchanges nothing. A loss that is NaN, as that of a
    faulty call is, has gradients that are NaN: an optimizer that skips such steps then cannot train on it.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_vD: Tensor, loss_sum: Tensor, grad_ND: Tensor | None, grad_vD: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(loss_sum, grad_ND, grad_vD)
        ctx.dtypes = (hidden_ND.dtype, weight_vD.dtype)
        return loss_sum.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        loss_sum, *made = ctx.saved_tensors
        scale = torch.where(loss_sum.isnan(), loss_sum, upstream)
        grads = [
            None if grad is None or not wanted else (grad * scale).to(dtype)
            for grad, dtype, wanted in zip(made, ctx.dtypes, ctx.needs_input_grad, strict=False)
        ]
        return grads[0], grads[1], None, None, None
