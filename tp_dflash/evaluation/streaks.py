"""Bookkeeping of accepted drafts: sums and counts that add up over blocks, batches, prompts and ranks.

In: streaks of blocks. Out: one tally whose every figure is a ratio of its sums, divided once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StreakTally:
    """How many blocks had 0, 1, .. K accepted drafted tokens; K tokens are drafted a block, in trees K deep."""

    blocks_by_streak: tuple[int, ...]

    @property
    def num_drafted(self) -> int:
        return len(self.blocks_by_streak) - 1

    @property
    def num_blocks(self) -> int:
        """Blocks, which is also target passes."""
        return sum(self.blocks_by_streak)

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(streak * count for streak, count in enumerate(self.blocks_by_streak))

    @property
    def mean_streak(self) -> float:
        """Accepted drafted tokens a block; 0 without blocks."""
        return self.num_accepted / max(1, self.num_blocks)

    @property
    def acceptance_length(self) -> float:
        """Tokens committed a target pass, bonus token included (1..K + 1)."""
        return 1.0 + self.mean_streak

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """For drafted positions 1..K: the share of all blocks that accepted it, and so everything before it."""
        reached = [sum(self.blocks_by_streak[k:]) for k in range(1, self.num_drafted + 1)]
        return tuple(count / max(1, self.num_blocks) for count in reached)

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """For drafted positions 1..K: the share accepted among blocks that accepted everything before; 0 if none did."""
        reached = [sum(self.blocks_by_streak[k:]) for k in range(self.num_drafted + 1)]
        return tuple(here / max(1, before) for before, here in itertools.pairwise(reached))

    def __add__(self, other: StreakTally) -> StreakTally:
        if self.num_drafted != other.num_drafted:
            raise ValueError(
                f"expected tallies of {self.num_drafted} drafted tokens a block, got {other.num_drafted}; add tallies of one "
                "drafter only"
            )
        pairs = zip(self.blocks_by_streak, other.blocks_by_streak, strict=True)
        return StreakTally(tuple(mine + theirs for mine, theirs in pairs))

    @staticmethod
    def empty(num_drafted: int) -> StreakTally:
        return StreakTally((0,) * (num_drafted + 1))

    @staticmethod
    def of(streaks: Iterable[int], num_drafted: int) -> StreakTally:
        counts = [0] * (num_drafted + 1)
        for streak in streaks:
            counts[streak] += 1
        return StreakTally(tuple(counts))


def leading_runs(hit_AK: Tensor, valid_AK: Tensor) -> Tensor:
    """Streak (A,) of each block from hits of its K drafted positions: a miss or an invalid position ends it."""
    return (hit_AK.bool() & valid_AK.bool()).long().cumprod(dim=1).sum(dim=1)


def renewal_streaks(streak_T: Tensor, start: int, stop: int) -> list[int]:
    """Streaks of the blocks that decoding would really draft in known text: t, then t + 1 + streak(t), while t < stop.

    streak_T: streak of the block anchored at each position. Their mean over all positions is not acceptance: decoding
    skips what it accepts, so it meets hard positions more often than a random anchor does (docs/evaluation.md).
    """
    streaks, at = [], start
    while at < stop:
        streaks.append(int(streak_T[at]))
        at += 1 + streaks[-1]
    return streaks
