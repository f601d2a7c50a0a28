"""``tp-dflash train CONFIG``: enter the world, place the roles, train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tp_dflash.cli.world import World, joined, leaving_at_once
from tp_dflash.config.load import load_config
from tp_dflash.placement import Placement


def train(
    config: Annotated[Path, typer.Argument(help="TOML configuration; launch/configs/ has examples.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value: --set drafter.block_size=16. Repeatable.")
    ] = None,
) -> None:
    """Train a drafter, evaluate it, export it. Start with torchrun for more than one rank."""
    run_config = load_config(config, settings or [])
    world = World.from_environment()
    placement = Placement.resolve(run_config.placement, world.world_size, world.local_world_size)
    place = placement.places[world.rank]
    with leaving_at_once(f"rank {world.rank}, {place.role}, node {place.node}, GPU {place.gpu}"):
        from tp_dflash.training.run import run_training

        with joined(world, run_config.training.timeout_seconds):
            run_training(run_config, placement, world.rank, sys.argv)
