"""Where the time goes: seconds by phase, with the device's work counted to the phase that asked for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tp_dflash.parallel import synchronise


class Stopwatch:
    """Adds up seconds of named phases; phases follow one another and do not nest."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        synchronise(self.device)
        start = time.perf_counter()
        yield
        synchronise(self.device)
        self.seconds[name] = self.of(name) + time.perf_counter() - start

    def of(self, name: str) -> float:
        return self.seconds.get(name, 0.0)
