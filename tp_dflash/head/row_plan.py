"""How the rows of a call fall into chunks: plain numbers from shapes and buckets, the same on every rank of the group.

Comes in: row counts and buckets that all ranks agree on. Goes out: chunk bounds and the schedule by which teacher rows are
projected. It never looks at a tensor, so nothing here can wait for a device or differ between ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RowPlan:
    """Chunks of the rows of one rank; all ranks that bring rows go through theirs in step.

    row_ranks: group ranks that bring rows, R of them. num_rows: n, rows of each such rank that are computed.
    chunk_stops: chunk i holds each rank's rows chunk_stops[i-1]..chunk_stops[i]-1 of the processing order.
    teacher_stops: before chunk i, each rank's teacher rows up to teacher_stops[i] have been projected, each one once.
    num_regions: so many of the last pieces of projected teacher rows are kept. shares_teachers: a teacher row may serve
    several rows; otherwise teacher row i of the order belongs to row i alone.
    """

    row_ranks: tuple[int, ...]
    num_rows: int
    chunk_stops: tuple[int, ...]
    teacher_stops: tuple[int, ...]
    num_regions: int
    shares_teachers: bool

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_stops)

    @property
    def num_teacher_rows(self) -> int:
        """Teacher rows of one rank that are projected."""
        return self.teacher_stops[-1] if self.teacher_stops else 0

    @property
    def largest_chunk(self) -> int:
        """Rows of one rank in the largest chunk."""
        return max((stop - start for start, stop in self.chunks()), default=0)

    @property
    def region_rows(self) -> int:
        """Teacher rows of one rank in the largest piece."""
        return max((stop - start for start, stop in self.teacher_pieces()), default=0)

    def chunks(self) -> list[tuple[int, int]]:
        """(start, stop) of each chunk in a rank's processing order."""
        return list(zip((0, *self.chunk_stops), self.chunk_stops, strict=False))

    def teacher_pieces(self) -> list[tuple[int, int]]:
        """(start, stop) of the teacher rows of a rank that are projected before each chunk."""
        return list(zip((0, *self.teacher_stops), self.teacher_stops, strict=False))


def plan_rows(
    row_ranks: tuple[int, ...],
    rows_per_rank: int,
    *,
    chunk_rows: int,
    block_size: int,
    active_rows: int | None,
    num_teacher_rows: int | None,
    whole_blocks: bool,
) -> RowPlan:
    """Plan a call in which each of ``row_ranks`` brings ``rows_per_rank`` rows.

    chunk_rows: rows of all ranks together whose logits exist at once. active_rows: bucket of rows per rank that are
    computed (None: all). num_teacher_rows: bucket of unique teacher rows per rank, each projected once (None: every row
    projects its own). whole_blocks: a chunk must hold whole blocks in the caller's order; then nothing is left out and
    nothing shared.
    """
    n = rows_per_rank if active_rows is None or whole_blocks else min(active_rows, rows_per_rank)
    chunk = max(1, chunk_rows // max(1, len(row_ranks)))
    if whole_blocks:
        chunk = max(block_size, chunk - chunk % block_size)
    chunk_stops = tuple(min(start + chunk, n) for start in range(0, n, chunk))
    if num_teacher_rows is None or whole_blocks or num_teacher_rows >= n:
        return RowPlan(row_ranks, n, chunk_stops, chunk_stops, 1, shares_teachers=False)
    spread = row_spread(n, num_teacher_rows, block_size)
    windows = [
        _teacher_window(start, stop, n, num_teacher_rows, spread)
        for start, stop in zip((0, *chunk_stops), chunk_stops, strict=False)
    ]
    teacher_stops = tuple(stop for _, stop in windows)
    regions = max(_pieces_needed(i, first, teacher_stops) for i, (first, _) in enumerate(windows))
    return RowPlan(row_ranks, n, chunk_stops, teacher_stops, regions, shares_teachers=True)


def row_spread(num_rows: int, num_teacher_rows: int, block_size: int) -> int:
    """How far, in rows, the processing order may stray from n/u rows a teacher row (see ``row_order``).

    A teacher row serves at most one row of a block and, since anchors are distinct, at most ``block_size`` rows; rows that
    only fill the bucket add their even share. The order keeps every prefix within the largest single step of the mean.
    """
    return block_size + math.ceil(num_rows / num_teacher_rows)


def _teacher_window(start: int, stop: int, n: int, u: int, spread: int) -> tuple[int, int]:
    """Teacher rows (first, past the last) that rows start..stop-1 of the order may need."""
    first = max(0, (start - spread) * u // n - 1)
    last = min(u, math.ceil((stop + spread) * u / n) + 1)
    return first, u if stop == n else last


def _pieces_needed(chunk: int, first_teacher: int, teacher_stops: tuple[int, ...]) -> int:
    """How many of the last pieces chunk ``chunk`` reads if its first teacher row is ``first_teacher``."""
    oldest = next(piece for piece in range(chunk + 1) if teacher_stops[piece] > first_teacher)
    return chunk - oldest + 1
