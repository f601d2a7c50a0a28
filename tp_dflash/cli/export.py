"""``tp-dflash export RUN``: write the drafter of a run's checkpoint in a published layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    layout: Annotated[str, typer.Option(help="zlab or speculators.")] = "zlab",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    step: Annotated[int | None, typer.Option(help="Checkpoint to export; default: the newest complete one.")] = None,
) -> None:
    """Export the drafter of a checkpoint; weights are read on the CPU, no process group is needed."""
    from tp_dflash.training.export import export_checkpoint

    print(f"exported {export_checkpoint(run, out, layout=layout, dtype=dtype, step=step)} to {out}")
