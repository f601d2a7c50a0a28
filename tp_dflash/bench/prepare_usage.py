"""What a piece of work takes of the machine: time, processor time, and memory, of this process and those it starts.

Read from /proc while the work runs: the processes of a pool are no children of ours, and have ended when it is over.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_SAMPLE_SECONDS = 0.5


class Usage:
    """Use as a context manager. seconds and processor_seconds: of the block alone. peak_bytes: proportional memory of all
    processes together, pages of files that they read included."""

    def __enter__(self) -> Usage:
        self.peak_bytes = 0
        self._processor: dict[int, float] = {}
        self._before = sum(_processor_seconds(process) for process in _family())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._done.set()
        self._thread.join()
        self._sample()

    @property
    def processor_seconds(self) -> float:
        return sum(self._processor.values()) - self._before

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        family = _family()
        self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, family)))
        # Those that have ended keep what they were last seen with.
        self._processor.update((process, _processor_seconds(process)) for process in family)


def _family() -> list[int]:
    """This process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    family = [os.getpid()]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family


def _stat(process: int) -> list[str]:
    """Fields of a process from its state on; none if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _processor_seconds(process: int) -> float:
    fields = _stat(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
