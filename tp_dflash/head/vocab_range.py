"""The token ids that one rank's head shard stands for: a half-open range of the whole vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class VocabRange:
    """Token ids start..stop-1 of a vocabulary of ``total`` ids; an empty range (start == stop) is allowed."""

    start: int
    stop: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= self.total:
            raise ValueError(
                f"expected a vocab range with 0 <= start <= stop <= total, got {self.start}..{self.stop} of {self.total}; "
                "make ranges with VocabRange.split"
            )

    @property
    def size(self) -> int:
        return self.stop - self.start

    @staticmethod
    def split(total: int, parts: int) -> tuple[VocabRange, ...]:
        """Contiguous ranges that tile ``total`` ids, in rank order; sizes differ by at most 1, the larger ones first."""
        if parts < 1:
            raise ValueError(f"expected at least one part, got {parts}; pass the size of the group")
        size, larger = divmod(total, parts)
        starts = [part * size + min(part, larger) for part in range(parts + 1)]
        return tuple(VocabRange(start, stop, total) for start, stop in itertools.pairwise(starts))

    def owns(self, ids: Tensor) -> Tensor:
        """Which of the ids lie in this range, a bool tensor of the same shape."""
        return (ids >= self.start) & (ids < self.stop)


def tiling_problem(ranges: Sequence[VocabRange]) -> str | None:
    """Why the ranges, in rank order, do not cover the vocabulary exactly once; None if they do."""
    expected_start = 0
    for rank, vocab in enumerate(ranges):
        if vocab.total != ranges[0].total:
            return f"rank {rank} counts {vocab.total} vocabulary rows, rank 0 counts {ranges[0].total}"
        if vocab.start != expected_start:
            return f"rank {rank} owns {vocab.start}..{vocab.stop}, expected a range that starts at {expected_start}"
        expected_start = vocab.stop
    if ranges and expected_start != ranges[0].total:
        return f"the last range stops at {expected_start}, expected {ranges[0].total}"
    return None
