"""``tp-dflash train CONFIG``: enter the world, place the roles, train."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tp_dflash.cli.durations import parse_duration
from tp_dflash.cli.signals import calling_on_signals
from tp_dflash.cli.world import World, joined, leaving_at_once, tell_torchrun
from tp_dflash.config.load import ConfigError, load_config
from tp_dflash.placement import Placement


def train(
    config: Annotated[Path, typer.Argument(help="TOML configuration; launch/configs/ has examples.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value: --set drafter.block_size=16. Repeatable.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(help='Stop, save and exit 0 after so long, such as "4h"; start again to go on.')
    ] = None,
    force: Annotated[bool, typer.Option(help="Start although the memory plan says that it does not fit.")] = False,
) -> None:
    """Train a drafter, evaluate it, export it; goes on from the newest checkpoint of its run folder.

    Start with torchrun for more than one rank. SIGTERM, SIGINT and SIGUSR1 stop after the step, save, and exit 0. torchrun
    itself, interrupted by Ctrl-C or SIGTERM, saves too but ends with 1; the scripts in launch/ end with 0.
    """
    run_config = load_config(config, settings or [])
    limit_seconds = _duration(max_time)
    world = World.from_environment()
    placement = Placement.resolve(run_config.placement, world.world_size, world.local_world_size)
    labels = tuple(f"rank {place.rank}, {place.role}, node {place.node}, GPU {place.gpu}" for place in placement.places)
    with leaving_at_once(labels[world.rank]) as leaving:
        import torch.distributed as dist

        from tp_dflash.parallel import Lookout, Neighbourhood, StopRequests, silence_of
        from tp_dflash.training.preflight import check_machines
        from tp_dflash.training.rank_log import RankLog
        from tp_dflash.training.run import run_training
        from tp_dflash.training.run_folder import RunFolder

        folder = RunFolder(Path(run_config.training.run_folder))
        leaving.log = RankLog(folder.log_of(world.rank), labels[world.rank])

        timeout = run_config.training.timeout_seconds
        with joined(world, timeout) as store:
            place = Neighbourhood(
                world.rank,
                labels,
                tuple(place.node for place in placement.places),
                os.getppid() if world.launched else None,
                silence_of(timeout),
            )
            lookout = leaving.lookout = Lookout(store, place, tell_torchrun)
            stop = StopRequests(lookout, world.rank == placement.drafters[0], limit_seconds)
            with calling_on_signals(stop.request, labels[world.rank]):
                assert dist.group.WORLD is not None
                check_machines(placement.places[world.rank], folder.path, dist.group.WORLD)
                if not run_training(run_config, placement, world.rank, sys.argv, stop, force):
                    stop.end()
                lookout.finish()


def _duration(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--max-time: {error}") from None
