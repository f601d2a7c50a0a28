"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A scratch folder beside ``path`` to write into; it takes the name of ``path`` when the block ends without error.

    An earlier drafter folder of that name is replaced; FileExistsError if something else lies there.
    """
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / "config.json").is_file())):
        raise FileExistsError(
            f"expected a free name or an earlier export at {path}, got something else; move it away or choose another"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        fresh = scratch / "new"
        fresh.mkdir()
        yield fresh
        for file in fresh.iterdir():
            _flush(file)
        if path.exists():
            path.rename(scratch / "old")
        fresh.rename(path)
    finally:
        shutil.rmtree(scratch)


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
