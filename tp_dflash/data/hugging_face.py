"""Data sets that the `datasets` package knows: folders it wrote, Arrow files, and names on a hub."""

from __future__ import annotations

from typing import Any

from tp_dflash.data.record_file import RecordFile


def open_dataset(file: RecordFile) -> Any:
    """Open one split. Rows are read from disk when they are iterated."""
    try:
        import datasets
    except ImportError:
        if file.kind == "hub":
            raise ValueError(
                f"expected a file, or the package datasets to load a hub data set, got neither for {file.path!r}; "
                "correct the name, or pip install tp_dflash[data]"
            ) from None
        raise ValueError(
            f"expected the package datasets to read {file.path}, got none; pip install tp_dflash[data]"
        ) from None
    if file.kind == "arrow":
        return datasets.Dataset.from_file(file.path)
    if file.kind == "hub":
        try:
            return datasets.load_dataset(file.path, file.subset, split=file.split)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"expected a file, a folder, or a hub data set with a split {file.split!r}, got {file.path!r}: {error}; "
                "correct data.train or data.validation"
            ) from None
    found = datasets.load_from_disk(file.path)
    if not isinstance(found, datasets.DatasetDict):
        return found
    if file.split not in found:
        raise ValueError(
            f"{file.path}: expected a split {file.split!r}, got {', '.join(found)}; set split beside the path"
        )
    return found[file.split]
