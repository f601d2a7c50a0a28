"""Streak bookkeeping: the same figures for every grouping of the same blocks (case 23), and renewal averages."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.evaluation.set_sums import SetSums
from tp_dflash.evaluation.streaks import StreakTally, leading_runs, renewal_streaks

GROUPINGS = [
    [[3, 1], [2, 0]],
    [[3, 2], [1, 0]],
    [[3, 2, 1, 0]],
    [[3], [2], [1], [0]],
    [[], [0, 1, 2, 3]],
    [[0], [3, 1, 2]],
]


@pytest.mark.parametrize("groups", GROUPINGS)
def test_grouping_cannot_show(groups: list[list[int]]) -> None:
    total = sum((StreakTally.of(group, num_drafted=3) for group in groups), StreakTally.empty(3))
    assert total.mean_streak == 1.5
    assert total.acceptance_length == 2.5
    assert total.acceptance_by_position == (0.75, 0.5, 0.25)
    assert total.conditional_acceptance == pytest.approx((3 / 4, 2 / 3, 1 / 2))


def test_grouping_into_ranks_cannot_show() -> None:
    """Two ranks, one of which may have no block at all."""
    cases = [[3, 2, 1, 0], [0, 1, 3, 2], [5], []]
    expected = [StreakTally.of(streaks, num_drafted=7).blocks_by_streak for streaks in cases]
    assert run_ranks(_summed_on_rank, 2, cases, timeout=180) == [expected] * 2


def _summed_on_rank(rank: int, cases: list[list[int]]) -> list[tuple[int, ...]]:
    own = [SetSums(StreakTally.of(streaks[rank::2], num_drafted=7), prompts=rank) for streaks in cases]
    sums = [each.over(dist.group.WORLD) for each in own]
    assert [each.prompts for each in sums] == [1.0] * len(cases)
    return [each.tally.blocks_by_streak for each in sums]


def test_a_gap_ends_the_run_and_is_not_skipped() -> None:
    hit = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    valid = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    assert leading_runs(hit, valid).tolist() == [2, 1, 0, 4]


def test_no_blocks_divide_nothing() -> None:
    empty = StreakTally.empty(4)
    assert (empty.num_blocks, empty.mean_streak, empty.acceptance_by_position) == (0, 0.0, (0.0,) * 4)


def test_tallies_of_other_block_sizes_do_not_add() -> None:
    with pytest.raises(ValueError, match="one drafter"):
        StreakTally.empty(3) + StreakTally.empty(4)


def test_renewal_steps_over_what_is_accepted() -> None:
    streak_T = torch.tensor([2, 0, 5, 1, 9, 3, 0])
    assert renewal_streaks(streak_T, start=0, stop=7) == [2, 1, 3]
    assert renewal_streaks(streak_T, start=1, stop=3) == [0, 5]
    assert renewal_streaks(streak_T, start=6, stop=6) == []


def test_renewal_average_is_not_the_mean_over_anchors() -> None:
    """Runs of 1 easy and 3 hard positions: a random anchor sees mean 0.75, decoding steps 3, 0, 3, 0 .."""
    streak_T = torch.tensor([3, 2, 1, 0] * 25 + [0])
    walked = renewal_streaks(streak_T, start=0, stop=100)
    assert sum(walked) / len(walked) == 3.0 != float(streak_T[:100].float().mean())
    assert sum(itertools.chain([1 + s for s in walked])) == 100
