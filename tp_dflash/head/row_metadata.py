"""What every shard must know of each row besides its hidden state: label, place of its teacher, scale; and faults.

Comes in: this rank's own rows in processing order. Goes out: the same for all ranks' rows, chunk after chunk. Values that a
device found to be wrong travel along as a code, so that every rank learns of them from the same numbers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.head.row_exchange import RowExchange
from tp_dflash.head.row_order import RowOrder
from tp_dflash.head.row_plan import RowPlan

_FAULTS = {
    1: "rank {rank} has labels outside 0..{vocabulary} on rows of weight above 0 (one is {example}); give such rows weight 0",
    2: "rank {rank} has teacher indices outside its own teacher rows on rows of weight above 0 (one is {example})",
    3: "rank {rank} has {example} rows of weight above 0, more than the bucket holds; raise active_rows",
    4: "rank {rank} uses {example} teacher rows, more than the bucket holds, or one for more rows than a block has "
    "positions; raise teacher_rows or leave it out",
    5: "rank {rank} has a negative or non-finite weight (one is {example}); weights must be finite and at least 0",
}


@dataclass(frozen=True, eq=False)
class RowMetadata:
    """Of all rows, ordered chunk by chunk and inside a chunk rank by rank (the order of ``gather_rows``).

    labels: token ids, -1 on rows of weight 0. slots: row of the teacher logits. scale: the row weight. faults: (R, 2),
    each rank's fault code (0: none) and one offending value.
    """

    labels: Tensor
    slots: Tensor
    scale: Tensor
    faults: Tensor


def find_faults(
    labels_N: Tensor, teacher_index_N: Tensor, weights_N: Tensor, num_teacher_rows: int, vocabulary: int
) -> Tensor:
    """(2,) int64: the code of the first kind of fault among this rank's rows and one offending value, without waiting."""
    active_N = weights_N != 0
    wrong_weight_N = ~(weights_N.isfinite() & (weights_N >= 0))
    wrong_index_N = active_N & ((teacher_index_N < 0) | (teacher_index_N >= num_teacher_rows))
    wrong_label_N = active_N & ((labels_N < 0) | (labels_N >= vocabulary))
    fault = labels_N.new_zeros(2)
    for code, wrong_N, values_N in (
        (5, wrong_weight_N, weights_N.nan_to_num(nan=-1).long()),
        (2, wrong_index_N, teacher_index_N),
        (1, wrong_label_N, labels_N),
    ):
        # Indexing by a tensor of no dimension would read it on the host.
        example = values_N.index_select(0, wrong_N.int().argmax()[None])
        fault = torch.where(wrong_N.any(), torch.cat([torch.full_like(example, code), example]), fault)
    return fault


def gather_metadata(
    exchange: RowExchange, plan: RowPlan, order: RowOrder | None, labels_N: Tensor, scale_N: Tensor, fault: Tensor
) -> RowMetadata:
    """Exchange the metadata of all rows in one all-gather of whole numbers and one of scales.

    order: None on a head-only rank. labels_N: -1 on inactive rows. scale_N: 0 there. Adjoint: none, all are constants.
    """
    packed = labels_N.new_zeros((plan.num_rows + 1, 2))
    scale_n = scale_N.new_zeros(plan.num_rows)
    if order is not None:
        packed[:-1, 0] = labels_N[order.row_n]
        packed[:-1, 1] = order.slot_n
        packed[-1] = fault
        scale_n = scale_N[order.row_n]
    packed_all, scale_all = exchange.gather_rows(packed), exchange.gather_rows(scale_n)
    by_rank = packed_all.view(len(plan.row_ranks), plan.num_rows + 1, 2)
    chunk_major = _chunk_major(plan, labels_N.device)
    rows = by_rank[:, :-1].reshape(-1, 2)[chunk_major]
    return RowMetadata(
        labels=rows[:, 0].contiguous(),
        slots=rows[:, 1].contiguous(),
        scale=scale_all[chunk_major],
        faults=by_rank[:, -1],
    )


def describe_fault(faults: Tensor, row_ranks: tuple[int, ...], vocabulary: int) -> str | None:
    """The first rank's fault in words, None if there is none; reads the values, so on a GPU it waits."""
    for rank, (code, example) in zip(row_ranks, faults.tolist(), strict=True):
        if code:
            return _FAULTS[code].format(rank=rank, example=example, vocabulary=vocabulary - 1)
    return None


@functools.lru_cache(maxsize=64)
def _chunk_major(plan: RowPlan, device: torch.device) -> Tensor:
    """Places of rank-major rows in the order chunk, rank, row; kept, because a copy from the host waits for the device."""
    rows = torch.arange(len(plan.row_ranks) * plan.num_rows).view(len(plan.row_ranks), plan.num_rows)
    parts = [rows[:, start:stop].reshape(-1) for start, stop in plan.chunks()]
    return torch.cat([rows.new_empty(0), *parts]).to(device)
