"""The order in which one rank's rows are computed: rows of weight 0 left out, rows that share a teacher row together.

Comes in: teacher indices and the mask of active rows, on any device. Goes out: permutations of fixed size and the place of
each row's teacher logits. Everything is made by sorts and sums of fixed shape, so nothing waits for the device.

Why not simply sort by teacher row: how many rows a stretch of teacher rows serves depends on the data, and the size of a
matrix product cannot. So teacher rows are merged from two queues, those that serve more rows than the average n/u and those
that serve fewer, always the queue whose running excess is the smaller. Every prefix of the merged order then serves its
share of the rows up to one teacher row's worth (``row_spread``), and chunk i needs a range that is known beforehand.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.head.row_plan import RowPlan


@dataclass(frozen=True, eq=False)
class RowOrder:
    """row_n: caller's index of each computed row. teacher_row_u: caller's index of each projected teacher row.

    slot_n: row of the teacher logits (all regions, all ranks) that holds this row's teacher. fault: (2,) int64, a fault code of
    ``row_metadata`` (0: none) and the number that did not fit its bucket.
    """

    row_n: Tensor
    teacher_row_u: Tensor
    slot_n: Tensor
    fault: Tensor


def order_rows(active_N: Tensor, teacher_index_N: Tensor, num_teacher_rows: int, plan: RowPlan, place: int) -> RowOrder:
    """Order the rows of the rank at ``place`` among the ranks that bring rows (0 .. R-1).

    active_N: bool (N,). teacher_index_N: (N,), anything on rows that are not active. num_teacher_rows: U.
    """
    teacher_index_N = torch.where(active_N, teacher_index_N, 0)
    n = plan.num_rows
    if not plan.shares_teachers:
        row_n = torch.arange(n, device=active_N.device)
        if n < active_N.shape[0]:
            row_n = torch.sort((~active_N).to(torch.uint8), stable=True).indices[:n]
        return RowOrder(row_n, teacher_index_N[row_n], _own_slots(plan, place, row_n), _fault(3, active_N.sum(), n))
    u = plan.num_teacher_rows
    counts_U = torch.zeros(max(num_teacher_rows, u), dtype=torch.int64, device=active_N.device)
    counts_U.scatter_add_(0, teacher_index_N, active_N.long())
    # The used teacher rows come first; unused ones, or repeats of row 0 past the caller's U, fill the bucket.
    by_use = torch.sort((counts_U == 0).to(torch.uint8), stable=True).indices
    kept_u = by_use[:u]
    rank_of_U = torch.empty_like(by_use).scatter_(0, by_use, torch.arange(by_use.shape[0], device=by_use.device))
    filler_rank_N = (~active_N).cumsum(0) - 1
    num_fillers = n - active_N.sum()
    is_filler_N = ~active_N & (filler_rank_N < num_fillers)
    item_N = torch.where(active_N, rank_of_U[teacher_index_N].clamp(max=u - 1), filler_rank_N % u)
    served_u = torch.zeros(u, dtype=torch.int64, device=active_N.device)
    served_u.scatter_add_(0, item_N, (active_N | is_filler_N).long())
    merged_u = _merge_evenly(served_u, n)
    position_u = torch.empty_like(merged_u).scatter_(0, merged_u, torch.arange(u, device=merged_u.device))
    position_N = position_u[item_N]
    key_N = torch.where(active_N | is_filler_N, position_N, u)
    row_n = torch.sort(key_N, stable=True).indices[:n]
    slot_n, outside = _shared_slots(position_N[row_n], plan, place)
    num_used = (counts_U > 0).sum()
    fault = _fault(4, torch.where(outside, u + 1, num_used), u)
    fault = torch.where(num_fillers < 0, _fault(3, active_N.sum(), n), fault)
    teacher_row_u = torch.where(kept_u < num_teacher_rows, kept_u, 0)[merged_u]
    return RowOrder(row_n, teacher_row_u, slot_n, fault)


def _fault(code: int, count: Tensor, bucket: int) -> Tensor:
    """(code, count) if the count is more than the bucket holds, else zeros."""
    pair = torch.stack([torch.full_like(count, code), count])
    return torch.where(count > bucket, pair, 0)


def _merge_evenly(served_u: Tensor, num_rows: int) -> Tensor:
    """Order of the teacher rows in which every prefix of t serves about t n/u rows (module docstring)."""
    excess_u = served_u * served_u.shape[0] - num_rows
    above_u = excess_u >= 0
    above_excess_u = torch.where(above_u, excess_u, 0)
    below_excess_u = torch.where(above_u, 0, -excess_u)
    running_u = torch.where(
        above_u, above_excess_u.cumsum(0) - above_excess_u, below_excess_u.cumsum(0) - below_excess_u
    )
    return torch.sort(running_u, stable=True).indices


def _own_slots(plan: RowPlan, place: int, row_n: Tensor) -> Tensor:
    """Without sharing, a chunk's teacher logits lie in the order of its rows: rank after rank."""
    position_n = torch.arange(plan.num_rows, device=row_n.device)
    return _slots(position_n, plan, place)[0]


def _shared_slots(position_n: Tensor, plan: RowPlan, place: int) -> tuple[Tensor, Tensor]:
    slot_n, piece_n = _slots(position_n, plan, place)
    index_n = torch.arange(plan.num_rows, device=position_n.device)
    chunk_n = index_n // plan.chunk_stops[0]
    outside = ((piece_n > chunk_n) | (piece_n <= chunk_n - plan.num_regions)).any()
    return slot_n, outside


def _slots(position_n: Tensor, plan: RowPlan, place: int) -> tuple[Tensor, Tensor]:
    """Row of the teacher buffer for each position in the teacher order, and the piece it belongs to."""
    starts, stops = _piece_bounds(plan, position_n.device)
    piece_n = torch.searchsorted(stops, position_n, right=True).clamp(max=plan.num_chunks - 1)
    region_n = piece_n % plan.num_regions
    length_n = (stops - starts)[piece_n]
    base_n = region_n * plan.region_rows * len(plan.row_ranks) + place * length_n
    return base_n + position_n - starts[piece_n], piece_n


@functools.lru_cache(maxsize=64)
def _piece_bounds(plan: RowPlan, device: torch.device) -> tuple[Tensor, Tensor]:
    """Starts and stops of the teacher pieces on the device; kept, because a copy from the host waits for the device."""
    bounds = torch.tensor(plan.teacher_pieces(), dtype=torch.int64).reshape(-1, 2).to(device)
    return bounds[:, 0].contiguous(), bounds[:, 1].contiguous()
