"""What all ranks must know of a step before any tensor moves: whether anything is trained, sizes that a group shares, and
whether the run stops after it.

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

_ROWS, _TEACHER_ROWS, _TOKENS, _BLOCKS, _STOP = range(5)


@dataclass(frozen=True)
class StepFacts:
    """Facts of one optimizer step over all ranks.

    num_rows, num_tokens, num_blocks: valid rows, context tokens, blocks. active_rows, teacher_rows: for each micro-step,
    the most valid rows and the most unique teacher rows that a rank of this head group brings. stop: some rank was asked to
    stop, so the step is the last one on all ranks alike.
    """

    num_rows: int
    num_tokens: int
    num_blocks: int
    active_rows: tuple[int, ...]
    teacher_rows: tuple[int, ...]
    stop: bool = False


def exchange_step_facts(
    layouts: Sequence[BlockLayout],
    accumulation: int,
    head_ranks: Sequence[int],
    workers: ProcessGroup,
    stop_wanted: bool = False,
) -> StepFacts:
    """Tell and learn; to be called by every rank of ``workers``, with no layouts on head-only ranks.

    layouts: this rank's packs, one a micro-step. head_ranks: global ranks of this rank's head group. stop_wanted: whether
    this rank was asked to stop. all-gather of numbers on the host, no adjoint.
    """
    mine = torch.zeros(accumulation, 5, dtype=torch.int64)
    mine[0, _STOP] = int(stop_wanted)
    for micro_step, layout in enumerate(layouts):
        facts = (layout.num_valid_rows, layout.num_teacher_rows, layout.pack.num_tokens, layout.num_blocks)
        mine[micro_step, :_STOP] = torch.tensor(facts)
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
        stop=total[_STOP] > 0,
    )
