"""What ranks tell each other before a step: sums over all, sizes over the head group, and one stop for everyone."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, Pack
from tp_dflash.training.step_facts import StepFacts, exchange_step_facts

# Of each rank's packs, one a micro-step: (tokens, first supervised token). Rank 3 has a head shard and no packs.
PACKS = {0: [(9, 0), (5, 0)], 1: [(7, 7), (12, 3)], 2: [(6, 2), (4, 4)], 3: []}
GROUPS = [(0, 1), (2, 3)]


def _layouts(rank: int) -> list[BlockLayout]:
    layouts = []
    for index, (tokens, first) in enumerate(PACKS[rank]):
        document = Document(index, torch.arange(tokens), torch.arange(tokens) >= first)
        pack = Pack(index, 0, (document,))
        layouts.append(BlockLayout.build(pack, AnchorCaps(4), 0, 4, "same_position"))
    return layouts


def _exchange(rank: int, stopping: int) -> tuple[object, ...]:
    assert dist.group.WORLD is not None
    group = next(group for group in GROUPS if rank in group)
    return astuple(exchange_step_facts(_layouts(rank), 2, group, dist.group.WORLD, rank == stopping))


@pytest.mark.parametrize("stopping", [-1, 0, 3])
def test_sums_are_of_all_ranks_and_sizes_of_the_group(stopping: int) -> None:
    told = [StepFacts(*facts) for facts in run_ranks(_exchange, 4, stopping)]
    layouts = {rank: _layouts(rank) for rank in PACKS}
    everyone = [layout for ranks in layouts.values() for layout in ranks]
    for rank, facts in enumerate(told):
        assert facts.num_tokens == sum(tokens for packs in PACKS.values() for tokens, _ in packs)
        assert facts.num_rows == sum(layout.num_valid_rows for layout in everyone) > 0
        assert facts.num_blocks == sum(layout.num_blocks for layout in everyone)
        assert facts.stop == (stopping >= 0)
        members = [layouts[member] for member in GROUPS[rank // 2] if layouts[member]]
        for step in range(2):
            assert facts.active_rows[step] == max(packs[step].num_valid_rows for packs in members)
            assert facts.teacher_rows[step] == max(packs[step].num_teacher_rows for packs in members)
