"""``tp-dflash bench prepare``: preparing training text beside the tokenizer alone."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def bench_prepare(
    tokenizer: Annotated[str, typer.Option(help="Folder or name of a tokenizer with a chat template.")],
    conversations: Annotated[int, typer.Option(min=1, help="Made-up conversations to prepare.")] = 100_000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of all contestants in turn; medians count.")] = 3,
    results: Annotated[Path, typer.Option(help="Where the figures are written.")] = Path("docs/results/prepare.json"),
) -> None:
    """Time the preparation of conversations beside the bare tokenizer, and measure its memory."""
    from tp_dflash.bench.prepare_command import measure_preparing

    with tempfile.TemporaryDirectory() as folder:
        found = measure_preparing(tokenizer, conversations, repeats, Path(folder))
    print(found.text())
    found.write(results, f"tp-dflash {shlex.join(sys.argv[1:])}")
    print(f"written to {results}")
