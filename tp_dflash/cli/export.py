"""``tp-dflash export SOURCE --out FOLDER``: a run's checkpoint, or a drafter that is published already, in a layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tp_dflash.config.load import ConfigError
from tp_dflash.config.run_files import RunFiles
from tp_dflash.config.target import TargetConfig

_LAYOUTS = ("zlab", "speculators")
_DTYPES = ("bfloat16", "float16", "float32")


def export(
    source: Annotated[Path, typer.Argument(help="Folder of a run; or of a published drafter, to convert it.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    layout: Annotated[str, typer.Option(help="zlab or speculators.")] = "zlab",
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16 or float32; default: bfloat16, or as the published drafter is."),
    ] = None,
    step: Annotated[int | None, typer.Option(help="Checkpoint of a run; default: the newest complete one.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Target of a published drafter: the speculators layout carries its matrices.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Of a run, speculators layout: keep so many of the most frequent tokens.")
    ] = None,
) -> None:
    """Export a checkpoint, or convert a published drafter; on the CPU, without a process group."""
    try:
        if layout not in _LAYOUTS or dtype not in (None, *_DTYPES):
            raise ValueError(f"expected a layout of {_LAYOUTS} and a dtype of {_DTYPES}, got {layout} and {dtype}")
        if RunFiles(source).settings.is_file():
            from tp_dflash.training.export import export_checkpoint

            found = export_checkpoint(
                source, out, layout=layout, dtype=dtype or "bfloat16", step=step, draft_vocabulary=draft_vocabulary
            )
            print(f"exported {found} to {out}")
            return
        from tp_dflash.formats import convert_published

        if step is not None or draft_vocabulary is not None:
            raise ValueError(
                f"expected --step and --draft-vocabulary for a run only, got {source}, which has no run.json"
            )
        config = None if target is None else TargetConfig(path=target, dtype="float32")
        convert_published(source, out, "zlab" if layout == "zlab" else "speculators", dtype=dtype, target=config)
        print(f"converted {source} to {out}")
    except (ValueError, FileExistsError) as error:
        raise ConfigError(str(error)) from None
