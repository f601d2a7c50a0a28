"""When each rank did what, in the time of its device: marks that cost nothing, read after the run.

In: names of phases as they begin. Out: spans in seconds since a common start. On a GPU a mark is an event on the current
stream, so a span is what the device did, not when the host enqueued it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tp_dflash.parallel import synchronise


@dataclass(frozen=True)
class Span:
    """``phase`` from ``start`` to ``stop``, seconds since the recorder's start; ``pack_id`` -1 where it is of no pack."""

    phase: str
    pack_id: int
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return self.stop - self.start


class SpanRecorder:
    """One rank's phases, one after the other: ``enter`` ends the last one and begins the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, int, torch.cuda.Event | float]] = []
        self._origin: torch.cuda.Event | float = 0.0

    def start(self) -> None:
        """Begin; call it on all ranks right after a barrier, so that their clocks agree."""
        synchronise(self._device)
        self._marks.clear()
        self._origin = self._now()

    def enter(self, phase: str, pack_id: int = -1) -> None:
        """From here on it is ``phase``."""
        self._marks.append((phase, pack_id, self._now()))

    def spans(self) -> list[Span]:
        """All spans but the last, which nothing ended; waits for the device."""
        synchronise(self._device)
        times = [self._since_start(mark) for _, _, mark in self._marks]
        pairs = zip(self._marks, times, times[1:], strict=False)
        return [Span(phase, pack_id, start, stop) for (phase, pack_id, _), start, stop in pairs]

    def _now(self) -> torch.cuda.Event | float:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _since_start(self, mark: torch.cuda.Event | float) -> float:
        if isinstance(mark, float):
            assert isinstance(self._origin, float)
            return mark - self._origin
        assert not isinstance(self._origin, float)
        return self._origin.elapsed_time(mark) / 1000


def seconds_by_phase(spans: list[Span]) -> dict[str, float]:
    """Total seconds of each phase, in the order in which they first occur."""
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.phase] = totals.get(span.phase, 0.0) + span.seconds
    return totals
