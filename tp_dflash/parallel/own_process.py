"""Whether a process of this machine still lives, told apart from a later one with the same number."""

from __future__ import annotations

import os
from pathlib import Path


def process_key() -> str:
    """Names this process: its number and, where the system tells, when it started."""
    return f"{os.getpid()} {_start_of(os.getpid()) or ''}".strip()


def is_alive(key: str) -> bool:
    """Whether the process that ``process_key`` named runs; one that has ended but is not yet collected does not."""
    number, _, started = key.partition(" ")
    if started:
        return _start_of(int(number)) == started
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_of(number: int) -> str | None:
    """Ticks from the machine's start to the process's; None if it has ended or the system does not tell."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return None if state in "ZX" else start
