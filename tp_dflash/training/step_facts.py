"""What all ranks must know of a step before any tensor moves: total weight, and sizes that a head group shares.

In: this rank's layouts. Out: the same facts on every rank. They are whole numbers and sums made on the host from tokens
and masks, exchanged on the host; the device is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout

_ROWS, _TEACHER_ROWS, _TOKENS, _BLOCKS, _WEIGHT, _PACK = range(6)


@dataclass(frozen=True)
class StepFacts:
    """Facts of one optimizer step over all ranks.

    weight_sum: sum of the block positions' weights over every valid row (of the rows' number where weights are made from
    predictions). num_rows, num_tokens, num_blocks: valid rows, context tokens, blocks. active_rows, teacher_rows: for each
    micro-step, the most valid rows and unique teacher rows that a rank of this head group brings.
    """

    weight_sum: float
    num_rows: int
    num_tokens: int
    num_blocks: int
    active_rows: tuple[int, ...]
    teacher_rows: tuple[int, ...]


def exchange_step_facts(
    layouts: Sequence[BlockLayout],
    weights_B: Tensor,
    accumulation: int,
    head_ranks: Sequence[int],
    workers: ProcessGroup,
) -> StepFacts:
    """Tell and learn; to be called by every rank of ``workers``, with no layouts on head-only ranks.

    all-gather of numbers on the host, no adjoint. Sums run over packs in their order, so that no grouping of packs into
    ranks and micro-batches can change a bit of them.
    """
    mine = torch.zeros(accumulation, 6, dtype=torch.float64)
    mine[:, _PACK] = -1
    for row, layout in zip(mine, layouts, strict=False):
        row[_ROWS], row[_TEACHER_ROWS] = layout.num_valid_rows, layout.num_teacher_rows
        row[_TOKENS], row[_BLOCKS] = layout.pack.num_tokens, layout.num_blocks
        row[_WEIGHT] = layout.weights_N(weights_B).sum(dtype=torch.float64)
        row[_PACK] = layout.pack.pack_id
    ranks = dist.get_process_group_ranks(workers)
    gathered = torch.empty(len(ranks), accumulation, 6, dtype=torch.float64)
    dist.all_gather_into_tensor(gathered, mine, group=workers)
    by_pack = sorted(gathered.flatten(0, 1).tolist(), key=lambda row: row[_PACK])
    mine_and_neighbours = gathered[[ranks.index(rank) for rank in head_ranks]].amax(dim=0)
    return StepFacts(
        weight_sum=sum(row[_WEIGHT] for row in by_pack),
        num_rows=int(sum(row[_ROWS] for row in by_pack)),
        num_tokens=int(sum(row[_TOKENS] for row in by_pack)),
        num_blocks=int(sum(row[_BLOCKS] for row in by_pack)),
        active_rows=tuple(int(row[_ROWS]) for row in mine_and_neighbours),
        teacher_rows=tuple(int(row[_TEACHER_ROWS]) for row in mine_and_neighbours),
    )
