"""``tp-dflash cache CONFIG``: write the features of the training documents once, for runs without target ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tp_dflash.cli.world import World, joined, leaving_at_once
from tp_dflash.config.load import ConfigError, load_config

if TYPE_CHECKING:  # heavy imports wait until a command needs them
    from rich.progress import Progress, TaskID

    from tp_dflash.training.feature_cache import CachePlan

_TIMEOUT_SECONDS = 24 * 3600.0


def cache(
    config: Annotated[Path, typer.Argument(help="TOML configuration of the runs that will read the features.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value: --set data.max_length=2048. Repeatable.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder; default: data.feature_cache.")] = None,
) -> None:
    """Write the target's features of all training documents; with torchrun every rank computes its share.

    Goes on where it was ended. A run reads them with data.feature_cache = FOLDER and placement.target = "colocated".
    """
    run_config = load_config(config, settings or [])
    folder = output or (Path(run_config.data.feature_cache) if run_config.data.feature_cache else None)
    if folder is None:
        raise ConfigError("data.feature_cache: expected a folder to write, got none; set it or use --output")
    world = World.from_environment()
    with leaving_at_once(f"rank {world.rank}, target, GPU {world.local_rank}"):
        import torch.distributed as dist
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from tp_dflash.parallel import pick_device
        from tp_dflash.training.feature_cache import write_feature_cache

        columns = (
            TextColumn("caching"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} tokens"),
            TimeRemainingColumn(),
        )
        with joined(world, _TIMEOUT_SECONDS), Progress(*columns, disable=world.rank != 0) as bar:
            assert dist.group.WORLD is not None
            task = bar.add_task("cache", total=None)
            write_feature_cache(
                run_config,
                folder,
                dist.group.WORLD,
                pick_device(world.local_rank),
                _announcing(bar, task, world),
                lambda tokens: bar.advance(task, tokens * world.world_size),
            )


def _announcing(bar: Progress, task: TaskID, world: World) -> Callable[[CachePlan], None]:
    def announce(plan: CachePlan) -> None:
        bar.update(task, total=plan.my_tokens * world.world_size)
        if world.rank == 0 and plan.exists:
            bar.console.print(f"{plan.folder} is complete", soft_wrap=True)
        elif world.rank == 0:
            bar.console.print(
                f"features of {plan.num_documents:,} documents, {plan.num_tokens:,} tokens: at most "
                f"{_size(plan.num_bytes)} in {plan.folder}",
                soft_wrap=True,
            )

    return announce


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / 2**20:,.1f} MiB"
