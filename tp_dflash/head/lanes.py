"""Two lanes of device work that run beside each other: matrix products, and the passes over what they made.

Comes in: nothing but order. On a GPU the lanes are streams, an event marks how far a lane has come, and the host only
enqueues; on the CPU everything runs where it stands and marks are nothing.

A product of this size fills a GPU to the last multiprocessor, and on today's kernels it holds them until it ends; a pass
launched beside it would wait for its end, and delay the next one. So the products that run beside passes leave some
multiprocessors out (``products.leave_room``), and the passes use just those. The products are slowed by less than the share
they give up, because it is the power limit that holds them back, and the passes cost nothing but that.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

Mark = torch.cuda.Event | None

# Share of the multiprocessors for the passes: so many that both passes of a chunk end with its successor's two projections.
_SHARE_OF_PASSES = 24 / 132


@dataclass(frozen=True, eq=False)
class Lanes:
    """``passes`` is a side stream, or None where work is in one line; ``reserved`` multiprocessors are left to it."""

    passes: torch.cuda.Stream | None
    reserved: int

    @staticmethod
    def open(device: torch.device, overlap: bool) -> Lanes:
        """Lanes of a device; without ``overlap``, on the CPU, and where a product cannot be kept small, one line."""
        if not overlap or device.type != "cuda" or not can_leave_room():
            return Lanes(None, 0)
        count = torch.cuda.get_device_properties(device).multi_processor_count
        return Lanes(_side_stream(device), round(count * _SHARE_OF_PASSES))

    def on_passes(self) -> AbstractContextManager[object]:
        """What is enqueued inside runs on the lane of the passes."""
        return torch.cuda.stream(self.passes) if self.passes is not None else nullcontext()

    def mark(self) -> Mark:
        """How far the current lane has come."""
        if self.passes is None:
            return None
        return torch.cuda.current_stream(self.passes.device).record_event()

    def wait(self, mark: Mark) -> None:
        """The current lane goes on once ``mark`` is reached; the host does not wait."""
        if mark is not None and self.passes is not None:
            torch.cuda.current_stream(self.passes.device).wait_event(mark)


def can_leave_room() -> bool:
    """Whether this torch can tell cuBLAS how many multiprocessors to leave out."""
    return hasattr(torch._C, "_set_sm_carveout_experimental")


@functools.lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The side lane of a device, of high priority: a pass that is ready goes before the next product."""
    return torch.cuda.Stream(device, priority=-1)
