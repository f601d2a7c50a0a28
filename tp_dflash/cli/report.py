"""``tp-dflash report RUN``: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tp_dflash.config.load import ConfigError


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Page to write; default: report.html in the run's folder.")
    ] = None,
) -> None:
    """Write a self-contained page: loss, acceptance, throughput, waiting, memory, learning rate, faults survived."""
    from tp_dflash.report import RunRecord, write_page

    path = out or run / "report.html"
    try:
        write_page(RunRecord.read(run), path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    print(f"report in {path}")
