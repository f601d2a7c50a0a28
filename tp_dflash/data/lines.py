"""Lines of a text file, compressed or not, without ever holding more than one of them.

In: a path. Out: lines as bytes with their numbers. A line longer than the limit is not read into memory: it comes as
None, and the lines after it keep their numbers.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tp_dflash.data.zstandard_file import open_zstandard

MAX_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"


def unpacked(file: IO[bytes], name: str) -> IO[bytes]:
    """The content of an open file, unpacked on the way if its name says that it is compressed."""
    opener = _OPENERS.get(Path(name).suffix.lower())
    return file if opener is None else opener(file, "rb")


def numbered_lines(file: IO[bytes], max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Lines counted from 1. Only a line feed ends a line; a byte order mark at the very start is left out."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(max_bytes)
            yield number, None
        else:
            yield number, line


_OPENERS: dict[str, Callable[[IO[bytes], str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": open_zstandard,
}
