"""Which tiles of a mask hold anything, from intervals: no mask is ever evaluated to find out.

In: a geometry whose context rows of one document lie together, in the order of their positions from 0, as packs lay them.
Out: for every 128 query rows and every 128 keys whether some pair is visible, and whether all are. Under ``visible`` a row
sees at most two intervals of keys, one of context and one of its own block, so tiles follow from four numbers a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tp_dflash.blocks import BlockGeometry

TILE = 128


def seen_intervals(
    geometry: BlockGeometry, *, window: int | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(first, past the last) key of each query row in the context, and the same in its own block; (N,) each."""
    num_context, size = geometry.num_context, geometry.block_size
    device = geometry.document_M.device
    row_N = torch.arange(geometry.anchor_position_N.shape[0], device=device)
    start_N = _document_starts(geometry)
    stop_N = start_N + geometry.anchor_position_N
    offset_N = row_N % size
    own_start_N = num_context + row_N - offset_N
    own_stop_N = own_start_N + (offset_N + 1 if causal else size)
    if window is not None:
        position_N = geometry.position_M[num_context:]
        start_N = torch.maximum(start_N, start_N + position_N - window + 1)
        own_start_N = torch.maximum(own_start_N, own_start_N + offset_N - window + 1)
    return start_N, stop_N, own_start_N, own_stop_N


def tiles(geometry: BlockGeometry, *, window: int | None, causal: bool) -> tuple[Tensor, Tensor]:
    """(some pair visible, every pair visible) for each tile, bool (query tiles, key tiles)."""
    start_N, stop_N, own_start_N, own_stop_N = seen_intervals(geometry, window=window, causal=causal)
    num_keys = geometry.document_M.shape[0]
    low_J = torch.arange(0, num_keys, TILE, device=start_N.device)
    high_J = low_J + TILE
    some_NJ = _meets(start_N, stop_N, low_J, high_J) | _meets(own_start_N, own_stop_N, low_J, high_J)
    # A tile that reaches past the last key is never whole.
    every_NJ = _covers(start_N, stop_N, low_J, high_J) | _covers(own_start_N, own_stop_N, low_J, high_J)
    missing = -start_N.shape[0] % TILE
    some_NJ, every_NJ = (torch.nn.functional.pad(table, (0, 0, 0, missing)) for table in (some_NJ, every_NJ))
    return some_NJ.unflatten(0, (-1, TILE)).any(dim=1), every_NJ.unflatten(0, (-1, TILE)).all(dim=1)


def _document_starts(geometry: BlockGeometry) -> Tensor:
    """Context row at which each query row's document begins; 0 for padding, whose anchor position is 0: nothing is seen."""
    num_context = geometry.num_context
    document_T, document_N = geometry.document_M[:num_context], geometry.document_M[num_context:]
    row_T = torch.arange(num_context, device=document_T.device)
    # Documents are numbered below the number of rows; padding goes to an entry of its own.
    start_D = row_T.new_full((num_context + 1,), num_context)
    start_D.scatter_reduce_(0, torch.where(document_T < 0, num_context, document_T), row_T, "amin")
    return torch.where(document_N < 0, 0, start_D[document_N.clamp(min=0)])


def _meets(start_N: Tensor, stop_N: Tensor, low_J: Tensor, high_J: Tensor) -> Tensor:
    first_N1, last_N1 = start_N[:, None], stop_N[:, None]
    return (first_N1 < last_N1) & (first_N1 < high_J) & (last_N1 > low_J)


def _covers(start_N: Tensor, stop_N: Tensor, low_J: Tensor, high_J: Tensor) -> Tensor:
    return (start_N[:, None] <= low_J) & (stop_N[:, None] >= high_J)
