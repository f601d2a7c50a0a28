"""``tp-dflash plan``: memory and speed of a configuration before it is started."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

_DEFAULT_GPU_MEMORY = "80GiB"


def plan(
    config: Annotated[Path, typer.Argument(help="TOML configuration.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat for more.")] = None,
    gpu_memory: Annotated[
        str, typer.Option(help="Memory of each GPU that may be used, such as 95GiB.")
    ] = _DEFAULT_GPU_MEMORY,
    nproc_per_node: Annotated[
        int | None, typer.Option(help="Ranks a node; default: as many as the placement names GPUs.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes; each repeats the placement.")] = 1,
    sweep: Annotated[str | None, typer.Option(help="Also scale over nodes, such as nodes=1,2,4,8,16.")] = None,
    picture: Annotated[Path, typer.Option(help="Where the sweep is drawn (.png, .svg, .pdf).")] = Path(
        "runs/plan-sweep.png"
    ),
    calibration: Annotated[
        Path | None, typer.Option(help="File written by `tp-dflash bench step`; default: an H200.")
    ] = None,
) -> None:
    """Show what every rank will hold, line by line, whether it fits, and how fast it will be. Needs no GPU."""
    # Loading torch and transformers makes a million objects, none of them garbage: to look for some takes a tenth of a plan's
    # time.
    gc.disable()
    try:
        from tp_dflash.config.load import ConfigError, load_config
        from tp_dflash.placement import Placement
        from tp_dflash.planner import (
            Calibration,
            RunSizes,
            check_fits,
            draw_sweep,
            parse_bytes,
            parse_nodes,
            plan_text,
            read_calibration,
            sweep_nodes,
            sweep_text,
        )
    finally:
        gc.enable()

    try:
        run = load_config(config, overrides or ())
        measured = read_calibration(calibration) if calibration else Calibration()
        per_node = nproc_per_node or len(RunSizes.gpus(run))
        placement = Placement.resolve(run.placement, per_node * nodes, per_node)
        verdict = check_fits(run, placement, parse_bytes(gpu_memory), measured)
        print(plan_text(verdict), end="")
        if sweep is not None:
            points = sweep_nodes(run, parse_nodes(sweep), measured)
            print("\n" + sweep_text(points), end="")
            draw_sweep(points, picture)
            print(f"drawn in {picture}")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not verdict.fits:
        raise typer.Exit(1)
