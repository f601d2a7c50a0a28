"""How a configuration scales over nodes: every node repeats the placement, and the drafter's state spreads over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tp_dflash.config.run import RunConfig
from tp_dflash.placement import Placement
from tp_dflash.planner.calibration import Calibration
from tp_dflash.planner.role_plan import plan_roles
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.planner.step_time import StepTime, predict_time


@dataclass(frozen=True)
class SweepPoint:
    """One number of nodes: GPUs, times, and the fullest rank's peak bytes."""

    num_nodes: int
    num_gpus: int
    time: StepTime
    peak_bytes: int


def parse_nodes(text: str) -> list[int]:
    """Node counts of ``nodes=1,2,4``; ValueError on anything else."""
    name, equals, numbers = text.partition("=")
    parts = [part.strip() for part in numbers.split(",")]
    if name.strip() != "nodes" or not equals or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--sweep: expected nodes=1,2,4 or the like, got {text!r}; list numbers of nodes from 1 on")
    return sorted({int(part) for part in parts})


def sweep_nodes(config: RunConfig, node_counts: Sequence[int], calibration: Calibration) -> list[SweepPoint]:
    """Plan the configuration on each number of nodes."""
    per_node = len(RunSizes.gpus(config))
    first = RunSizes.of(config, Placement.resolve(config.placement, per_node, per_node))
    points = []
    for nodes in node_counts:
        placement = Placement.resolve(config.placement, nodes * per_node, per_node)
        sizes = first.with_config(config, placement)
        peak = max(role.peak_bytes for role in plan_roles(sizes, calibration))
        points.append(SweepPoint(nodes, nodes * per_node, predict_time(sizes, calibration), peak))
    return points
