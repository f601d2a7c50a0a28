"""Requests to stop: a signal, a time limit, another rank's word; and whether the run may be ended at any moment.

In: a lookout that spreads the request. Out: one question, ``wanted``, that the loop asks once a step. While a run holds
nothing that is not on disk (it loads, evaluates, exports) it is at rest, and a request ends it within a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tp_dflash.parallel.lookout import Lookout


class StopRequests:
    """What was asked of this run so far. decides: this rank says for all whether the run is at rest (the reporting rank)."""

    def __init__(self, lookout: Lookout, decides: bool, limit_seconds: float | None = None) -> None:
        """limit_seconds: from now on; then the run stops as if it had been asked to, but not before its first step."""
        self._lookout = lookout
        self._decides = decides
        self._deadline = None if limit_seconds is None else time.monotonic() + limit_seconds
        self._at_rest, self._has_worked = True, False
        self._lock = threading.Lock()
        lookout.start(self._consider)

    def request(self) -> None:
        """Ask all ranks to stop: at once where the run is at rest, else after the step and a save."""
        self._lookout.stop.set()

    @property
    def wanted(self) -> bool:
        """Whether this rank knows of a request; ranks may differ for a while, the loop agrees."""
        late = self._deadline is not None and time.monotonic() > self._deadline
        return late or self._lookout.stop.is_set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While there is something to lose."""
        with self._lock:
            self._at_rest, self._has_worked = False, True
        yield
        with self._lock:
            self._at_rest = True

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """While nothing is unsaved in the midst of the work."""
        with self._lock:
            before, self._at_rest = self._at_rest, True
        yield
        with self._lock:
            self._at_rest = before

    def end(self) -> None:
        """The run has stopped as it was asked to, and all is saved: end all ranks. Returns only where a test stands in."""
        if self._decides:
            self._lookout.end("stopped and saved")
        self._lookout.wait_for_the_end()

    def _consider(self) -> None:
        with self._lock:
            asked = self.wanted if self._has_worked else self._lookout.stop.is_set()
            if self._decides and self._at_rest and asked:
                self._lookout.end("asked to stop while nothing was unsaved")
