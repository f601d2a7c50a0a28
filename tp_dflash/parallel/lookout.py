"""Each rank looks out for the others: a death, a failure or the agreed end of the run reaches all of them in seconds.

In: a connection to the job's key-value store, this rank's place. A thread tells the store what this rank knows and learns
what others told. A rank that waits in a collective for one that is gone cannot run Python code in its main thread; this
thread can still end it. Nothing here takes part in a collective.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch.distributed import Store

from tp_dflash.parallel.own_process import is_alive, process_key

_POLL_SECONDS = 0.5
# The first rank's process may be the one that holds the store: it leaves last, but does not wait long for ranks that hang.
_LAST_SECONDS = 4.0
_MOST_CHARACTERS = 2000
_FAILED, _ENDED, _STOP = "failed", "ended", "stop"


@dataclass(frozen=True)
class Neighbourhood:
    """Who this rank is and whom it watches.

    labels: rank, role, node and GPU of every rank, in words. node_of: node of every rank. parent: process that started the
    rank and must outlive it, None if there is none. silence_seconds: a node of which no rank says a word for so long is lost.
    """

    rank: int
    labels: tuple[str, ...]
    node_of: tuple[int, ...]
    parent: int | None
    silence_seconds: float

    @property
    def siblings(self) -> list[int]:
        """The other ranks of this node."""
        return [rank for rank, node in enumerate(self.node_of) if node == self.node_of[self.rank] and rank != self.rank]


class Lookout:
    """A thread beside the training. ``stop`` is set once any rank was asked to stop."""

    def __init__(
        self,
        store: Store,
        place: Neighbourhood,
        report: Callable[[str], None],
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        """store: a connection of its own. report: is told why this rank ends after a failure. leave: ends this process."""
        self.place = place
        self.stop = threading.Event()
        self._store = store
        self._report, self._leave = report, leave
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._processes: dict[int, str] = {}
        self._beat, self._beat_at = -1, time.monotonic()
        self._stop_told = self._has_left = False
        self._each_look: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._watch, name="lookout", daemon=True)

    @property
    def label(self) -> str:
        return self.place.labels[self.place.rank]

    def start(self, each_look: Callable[[], None]) -> None:
        """Begin to watch; ``each_look`` is called in the thread about twice a second."""
        self._each_look = each_look
        self._store.set(f"process/{self.place.rank}", process_key())
        self._thread.start()

    def claim_failure(self, text: str) -> bool:
        """Tell all ranks that this one fails; True if it is the first to say so."""
        mine = f"{self.label}: {' '.join(text.split())[:_MOST_CHARACTERS]}"
        with self._lock:
            return self._store.compare_set(_FAILED, "", mine).decode() == mine

    def failure(self) -> str | None:
        """What the first failing rank said, if one did."""
        return self._read(_FAILED)

    def end(self, reason: str) -> None:
        """End the run on all ranks, with exit code 0; everything that has to last must be on disk."""
        with self._lock:
            self._store.set(_ENDED, reason)

    def ended(self) -> bool:
        return self._read(_ENDED) is not None

    def wait_for_the_end(self) -> None:
        """After ``end`` on some rank: this rank's thread ends the process."""
        self._thread.join()

    def finish(self, limit_seconds: float = 20.0) -> None:
        """This rank has done its part: wait for the others to say so too, a little, then stop watching."""
        self._say_left()
        self._until_all_left(limit_seconds)
        with suppress(RuntimeError):  # the last rank to leave takes the store along
            failure = self.failure()
            if failure is not None:
                # One that failed has left too; what it said comes before it left.
                self._go(1, f"leaves, because this failed first: {failure}")
        self._finished.set()
        self._thread.join()

    def before_leaving(self) -> None:
        """This rank is about to end itself after a failure; if the store may end with it, the others can read it before."""
        self._say_left()
        if self.place.rank == 0:
            self._until_all_left(_LAST_SECONDS)

    def _say_left(self) -> None:
        self._has_left = True
        with suppress(RuntimeError), self._lock:  # the store may be gone by now
            self._store.set(f"left/{self.place.rank}", "1")

    def _until_all_left(self, limit_seconds: float) -> None:
        """Wait until every rank has left, or the store has, which the last rank takes along."""
        everyone = [f"left/{rank}" for rank in range(len(self.place.labels))]
        deadline = time.monotonic() + limit_seconds
        while time.monotonic() < deadline:
            try:
                with self._lock:
                    if self._store.check(everyone):
                        return
            except RuntimeError:
                return
            time.sleep(0.05)

    def _read(self, key: str) -> str | None:
        with self._lock:
            return self._store.get(key).decode() if self._store.check([key]) else None

    def _watch(self) -> None:
        while not self._finished.wait(_POLL_SECONDS):
            try:
                self._look()
            except RuntimeError as error:
                if self._has_left:
                    return
                self._go(1, f"leaves: {self._why_no_store(error)}")

    def _why_no_store(self, error: RuntimeError) -> str:
        """In words; where the first rank held it and was killed on this node, that is what happened."""
        dead = [rank for rank, key in self._processes.items() if not is_alive(key)]
        if 0 in dead:
            return self._gone(0)
        return f"the job's store (on the first node) is gone: {str(error).strip().splitlines()[0]}"

    def _gone(self, rank: int) -> str:
        return (
            f"{self.place.labels[rank]} is gone without a word: its process was killed (out of host memory, or by hand) or "
            "crashed in native code; the machine's log says more"
        )

    def _look(self) -> None:
        failure = self.failure()
        if failure is not None:
            # The rank that failed first is given the time to show its traceback first.
            time.sleep(_POLL_SECONDS)
            self._go(1, f"leaves, because this failed first: {failure}")
        if self.ended():
            self._go(0, "")
        self._each_look()
        self._share_stop()
        self._watch_siblings()
        self._watch_next_node()
        if self.place.parent is not None and os.getppid() != self.place.parent:
            self._declare(f"{self.label}: the process that started it is gone; the job is given up")

    def _share_stop(self) -> None:
        if self.stop.is_set() and not self._stop_told:
            with self._lock:
                self._store.set(_STOP, self.label)
            self._stop_told = True
        elif not self.stop.is_set() and self._read(_STOP) is not None:
            self._stop_told = True
            self.stop.set()

    def _watch_siblings(self) -> None:
        for rank in self.place.siblings:
            if rank not in self._processes:
                key = self._read(f"process/{rank}")
                if key is not None:
                    self._processes[rank] = key
            elif not is_alive(self._processes[rank]) and self._read(f"left/{rank}") is None:
                self._declare(self._gone(rank))

    def _watch_next_node(self) -> None:
        """The ranks of a node count together; one rank of the node before it watches that they do."""
        node, last = self.place.node_of[self.place.rank], max(self.place.node_of)
        if last == 0:
            return
        with self._lock:
            self._store.add(f"beat/{node}", 1)
            watched = (node + 1) % (last + 1)
            beat = self._store.add(f"beat/{watched}", 0)
        now = time.monotonic()
        if beat != self._beat:
            self._beat, self._beat_at = beat, now
        elif beat and now - self._beat_at > self.place.silence_seconds:
            ranks = [rank for rank, its in enumerate(self.place.node_of) if its == watched]
            if not all(self._read(f"left/{rank}") for rank in ranks):
                seconds = f"{self.place.silence_seconds:.0f} s"
                self._declare(f"node {watched} (ranks {ranks[0]} to {ranks[-1]}) has said nothing for {seconds}")

    def _declare(self, what: str) -> None:
        """Report the failure of something that cannot report it itself."""
        if self.ended():
            return
        with self._lock:
            first = self._store.compare_set(_FAILED, "", what).decode() == what
        if first:
            self._go(1, f"failed: {what}")

    def _go(self, code: int, text: str) -> None:
        sys.stdout.flush()
        if text:
            # Before anything that takes time: the launcher ends this rank as soon as it sees another one's end.
            self._report(f"[{self.label}] {text}")
            os.write(2, f"[{self.label}] {text}\n".encode())
        self.before_leaving()
        self._leave(code)


def silence_of(timeout_seconds: float) -> float:
    """How long a node may be silent: at most 40 s, so that a lost node ends the job within a minute."""
    return min(40.0, timeout_seconds)
