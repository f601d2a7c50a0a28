"""The memory of one rank of each role, as a table whose rows add up.

In: sizes and a calibration. Out: a RolePlan for every role that the placement has. A rank holds the most at one moment of
its step; the lines of that moment are its peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from tp_dflash.planner.calibration import Calibration
from tp_dflash.planner.drafter_memory import activation_lines, batch_lines, gather_lines, state_lines
from tp_dflash.planner.head_memory import chunk_lines, shard_line
from tp_dflash.planner.memory_line import ALL_MOMENTS, MemoryLine, Moment
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.planner.target_memory import PACKS_ON_TARGET, buffer_line, forward_line, weight_line

# Packs that arrive on a drafter rank while it trains on another.
PACKS_AHEAD = 1


@dataclass(frozen=True)
class RolePlan:
    """role: in words; ranks: those that have it. lines: everything such a rank holds at some moment."""

    role: str
    ranks: tuple[int, ...]
    lines: tuple[MemoryLine, ...]

    def held_at(self, moment: Moment) -> int:
        """Bytes held at a moment of the step."""
        return sum(line.num_bytes for line in self.lines if moment in line.moments)

    @property
    def peak_moment(self) -> Moment:
        return max(ALL_MOMENTS, key=self.held_at)

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once, what lies outside the allocator included."""
        return self.held_at(self.peak_moment)


def plan_roles(sizes: RunSizes, calibration: Calibration) -> tuple[RolePlan, ...]:
    """One plan a role, in the order in which the placement's ranks first show it."""
    lines = {
        "target": lambda: _target_lines(sizes),
        "drafter": lambda: _drafter_lines(sizes),
        "head-only": lambda: [shard_line(sizes), *chunk_lines(sizes)],
        "target + drafter": lambda: _colocated_lines(sizes),
    }
    ranks: dict[str, list[int]] = {}
    for place in sizes.placement.places:
        ranks.setdefault(place.role, []).append(place.rank)
    return tuple(
        RolePlan(role, tuple(members), (*lines[role](), *_overhead_lines(sizes, calibration)))
        for role, members in ranks.items()
    )


def _target_lines(sizes: RunSizes) -> list[MemoryLine]:
    buffers = buffer_line(sizes, PACKS_ON_TARGET, "send buffers")
    return [weight_line(sizes), buffers, forward_line(sizes)]


def _drafter_lines(sizes: RunSizes) -> list[MemoryLine]:
    ahead = buffer_line(sizes, PACKS_AHEAD, "receive buffer of the next pack")
    return [*_training_lines(sizes), buffer_line(sizes, 1, "context features"), ahead]


def _colocated_lines(sizes: RunSizes) -> list[MemoryLine]:
    return [weight_line(sizes), *_training_lines(sizes), buffer_line(sizes, 1, "context features"), forward_line(sizes)]


def _training_lines(sizes: RunSizes) -> list[MemoryLine]:
    return [
        *state_lines(sizes),
        shard_line(sizes),
        *gather_lines(sizes),
        *batch_lines(sizes),
        *activation_lines(sizes),
        *chunk_lines(sizes),
    ]


def _overhead_lines(sizes: RunSizes, calibration: Calibration) -> list[MemoryLine]:
    talks = len(sizes.placement.places) > 1
    return [
        MemoryLine("library workspaces, small tensors", calibration.workspace_bytes, "measured"),
        MemoryLine(
            "CUDA context, NCCL" if talks else "CUDA context",
            calibration.outside_bytes + (calibration.communication_bytes if talks else 0),
            "measured, outside the allocator",
        ),
    ]
