"""Plans of the shipped configurations and of small variations, for the planner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tp_dflash.config.load import load_config
from tp_dflash.placement import Placement
from tp_dflash.planner import RunSizes, Verdict, check_fits, parse_bytes

CONFIGS = Path(__file__).parents[2] / "launch" / "configs"
ONE_AND_ONE = ("placement.target=0", "placement.drafter=1", "placement.tensor_parallel=1")
COLOCATED = ("placement.target=colocated", "placement.drafter=0,1")


def verdict_of(
    name: str = "qwen3.6-27b-ddtree", settings: Sequence[str] = (), memory: str = "95GiB", nodes: int = 1
) -> Verdict:
    config = load_config(CONFIGS / f"{name}.toml", settings)
    per_node = len(RunSizes.gpus(config))
    placement = Placement.resolve(config.placement, per_node * nodes, per_node)
    return check_fits(config, placement, parse_bytes(memory))
