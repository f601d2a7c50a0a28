"""Two lanes of device work that run beside each other: matrix products, and the passes over what they made.

Comes in: nothing but order. On a GPU the lanes are streams, an event marks how far a lane has come, and the host only
enqueues; on the CPU everything runs where it stands and marks are nothing.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

Mark = torch.cuda.Event | None


@dataclass(frozen=True, eq=False)
class Lanes:
    """``products`` is the caller's stream; ``passes`` and ``drain`` are side streams, or None where work is in one line."""

    products: torch.cuda.Stream | None
    passes: torch.cuda.Stream | None
    drain: torch.cuda.Stream | None

    @staticmethod
    def open(device: torch.device, overlap: bool) -> Lanes:
        """Lanes of a device; without ``overlap``, and on the CPU, one line."""
        if device.type != "cuda":
            return Lanes(None, None, None)
        products = torch.cuda.current_stream(device)
        if not overlap:
            return Lanes(products, None, None)
        passes, drain = _side_streams(device)
        return Lanes(products, passes, drain)

    def on_passes(self) -> AbstractContextManager[object]:
        """What is enqueued inside runs on the lane of the passes."""
        return torch.cuda.stream(self.passes) if self.passes is not None else nullcontext()

    def on_drain(self) -> AbstractContextManager[object]:
        """What is enqueued inside runs on the lane that brings gradients home."""
        return torch.cuda.stream(self.drain) if self.drain is not None else nullcontext()

    def mark(self) -> Mark:
        """How far the current lane has come."""
        if self.passes is None:
            return None
        return torch.cuda.current_stream(self.passes.device).record_event()

    def wait(self, mark: Mark) -> None:
        """The current lane goes on once ``mark`` is reached; the host does not wait."""
        if mark is not None and self.passes is not None:
            torch.cuda.current_stream(self.passes.device).wait_event(mark)


@functools.lru_cache(maxsize=16)
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The side lanes of a device. High priority: a pass takes the multiprocessors that a product's last tiles leave."""
    return torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device, priority=-1)
