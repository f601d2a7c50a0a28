"""How long a rank has waited for its peers, in the time of the device that did nothing meanwhile.

On the CPU that is the host's clock. On a GPU the host runs ahead: what counts is from the moment the device has finished what
was queued before the wait to the moment it may go on, read from event pairs once they have passed, without a sync.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Waiting:
    """Adds up waits; ``seconds`` counts those that are over on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = time.monotonic()
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """A wait: the host's block and whatever it makes the current stream wait for."""
        if self._device.type != "cuda":
            begun = time.monotonic()
            yield
            self._seconds += time.monotonic() - begun
            return
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._pairs.append((first, last))

    @property
    def seconds(self) -> float:
        while self._pairs and self._pairs[0][1].query():
            first, last = self._pairs.popleft()
            self._seconds += first.elapsed_time(last) / 1000
        return self._seconds

    @property
    def elapsed(self) -> float:
        """Seconds since counting began."""
        return time.monotonic() - self._started
