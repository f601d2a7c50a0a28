"""Small files that tell how a run goes: figures, heartbeats, logs. A disk that takes no more must not end the run.

In: a path and text. Out: nothing, or the reason why it could not be written, in words. What is there already stays readable.
"""

from __future__ import annotations

import os
from pathlib import Path


def append_line(path: Path, line: str) -> str | None:
    """Add a line as a whole or not at all; the folder is made if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            data, end = f"{line}\n".encode(), file.tell()
            written = file.write(data)
            if written != len(data):
                # Half a line would spoil the next one.
                file.truncate(end)
                return f"{path}: no room for the whole line"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None


def replace_text(path: Path, text: str) -> str | None:
    """Make ``text`` the whole file in one move: a reader sees the file before or after, never half of it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None
