"""What all ranks must know of a step before any tensor moves: whether anything is trained, and sizes that a group shares.

In: this rank's layouts. Out: the same facts on every rank. They are whole numbers made on the host from tokens and masks,
exchanged on the host; the device is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout

_ROWS, _TEACHER_ROWS, _TOKENS, _BLOCKS = range(4)


@dataclass(frozen=True)
class StepFacts:
    """Facts of one optimizer step over all ranks.

    num_rows, num_tokens, num_blocks: valid rows, context tokens, blocks. active_rows, teacher_rows: for each micro-step,
    the most valid rows and the most unique teacher rows that a rank of this head group brings.
    """

    num_rows: int
    num_tokens: int
    num_blocks: int
    active_rows: tuple[int, ...]
    teacher_rows: tuple[int, ...]


def exchange_step_facts(
    layouts: Sequence[BlockLayout], accumulation: int, head_ranks: Sequence[int], workers: ProcessGroup
) -> StepFacts:
    """Tell and learn; to be called by every rank of ``workers``, with no layouts on head-only ranks.

    layouts: this rank's packs, one a micro-step. head_ranks: global ranks of this rank's head group. all-gather of numbers
    on the host, no adjoint.
    """
    mine = torch.zeros(accumulation, 4, dtype=torch.int64)
    for micro_step, layout in enumerate(layouts):
        facts = (layout.num_valid_rows, layout.num_teacher_rows, layout.pack.num_tokens, layout.num_blocks)
        mine[micro_step] = torch.tensor(facts)
    ranks = dist.get_process_group_ranks(workers)
    gathered = [torch.empty_like(mine) for _ in ranks]
    dist.all_gather(gathered, mine, group=workers)
    everyone = torch.stack(gathered)
    total = everyone.sum(dim=(0, 1)).tolist()
    largest = everyone[[ranks.index(rank) for rank in head_ranks]].amax(dim=0)
    return StepFacts(
        num_rows=total[_ROWS],
        num_tokens=total[_TOKENS],
        num_blocks=total[_BLOCKS],
        active_rows=tuple(largest[:, _ROWS].tolist()),
        teacher_rows=tuple(largest[:, _TEACHER_ROWS].tolist()),
    )
