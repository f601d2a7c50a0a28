"""The world that torchrun made, or a world of one: read from the environment once, entered and left here.

In: environment variables. Out: plain numbers, an initialised default process group, and a store through which ranks look
out for each other. A rank that fails tells the others, prints its traceback (of a mistake in the settings only the
message) with its role and leaves at once, without waiting for anyone; torchrun sees it too and ends its own report with
what failed first.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch loads slowly; commands that need no world must not wait for it
    from torch.distributed import Store

    from tp_dflash.parallel.lookout import Lookout
    from tp_dflash.training.rank_log import RankLog

# A failure that only follows from another rank's is kept back so long for that rank's own words.
_FIRST_WORDS_SECONDS = 6.0


@dataclass(frozen=True)
class World:
    """Who this process is. local_world_size: ranks on this node. launched: by torchrun, which must outlive the rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launched: bool = False

    @staticmethod
    def from_environment() -> World:
        """torchrun's variables; a world of one where there are none."""
        if "RANK" not in os.environ:
            return World(0, 1, 0, 1)
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, world_size, local_rank, local_world_size = (int(os.environ[name]) for name in names)
        return World(rank, world_size, local_rank, local_world_size, launched="TORCHELASTIC_RUN_ID" in os.environ)


@contextmanager
def joined(world: World, timeout_seconds: float) -> Iterator[Store]:
    """Enter the default process group (gloo: it only carries handshakes; roles open groups of their own) and leave it.

    Yields a connection to the job's store that nobody else uses.
    """
    import torch.distributed as dist

    from tp_dflash.parallel.meeting import agree_on_start

    timeout = timedelta(seconds=timeout_seconds)
    if "RANK" in os.environ:
        store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        start = agree_on_start(store, rank, world_size, timeout)
        group_store = dist.PrefixStore(f"{start}/groups", store)
        dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world_size, timeout=timeout)
        yield dist.PrefixStore(f"{start}/lookout", store.clone())
    else:
        # In memory: a store on disk that is gone when a failure is told makes the last words wait for minutes.
        store = dist.HashStore()
        dist.init_process_group("gloo", store=dist.PrefixStore("groups", store), rank=0, world_size=1, timeout=timeout)
        yield dist.PrefixStore("lookout", store)
    dist.destroy_process_group()


class Leaving:
    """How a rank ends when something fails. lookout, log (the rank's own): set once they are known."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.lookout: Lookout | None = None
        self.log: RankLog | None = None

    def fail(self, error: BaseException) -> None:
        """Show what failed, the first failing rank's words first, and end the process with code 1 (130: interrupted)."""
        sys.stdout.flush()
        text = self._words(error)
        if self.lookout is None:
            tell_torchrun(f"[{self.label}] {type(error).__name__}: {error}")
        else:
            text = self._in_turn(error, self.lookout, text)
        os.write(2, f"\n[{self.label}] failed:\n{text}".encode())
        if self.lookout is not None:
            self.lookout.before_leaving()
        os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)

    def _words(self, error: BaseException) -> str:
        """The traceback; where a person's mistake is explained by its message, only that, and the traceback in the log."""
        text = traceback.format_exc()
        if self.log is None:
            return text
        is_kept = self.log.say(f"failed:\n{text}")
        return f"{error}\n(traceback: {self.log.path})\n" if is_kept and _is_explained(error) else text

    def _in_turn(self, error: BaseException, lookout: Lookout, text: str) -> str:
        """This rank's words if it failed first; else one line, for the first one's words are shown by its rank."""
        try:
            deadline = time.monotonic() + (_FIRST_WORDS_SECONDS if _is_consequence(error) else 0.0)
            while lookout.failure() is None and time.monotonic() < deadline:
                if lookout.ended():
                    os._exit(0)
                time.sleep(0.1)
            if lookout.claim_failure(f"{type(error).__name__}: {error}"):
                tell_torchrun(f"[{self.label}] {type(error).__name__}: {error}")
                return text
            first = lookout.failure() or "another rank"
        except RuntimeError:  # the store is gone: nobody can be asked
            tell_torchrun(f"[{self.label}] {type(error).__name__}: {error}")
            return text
        own = f"{type(error).__name__}: {error}".splitlines()[0]
        tell_torchrun(f"[{self.label}] {own}\n  this failed first: {first}")
        time.sleep(1.0)
        return f"{own}\n  this failed first: {first}\n"


def tell_torchrun(words: str) -> None:
    """``words`` in the file that torchrun quotes at the end of its report, which comes after every traceback.

    Whichever rank torchrun takes for the first that failed (the first that it saw end), its words must name the cause.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        extra = {"py_callstack": words, "timestamp": str(int(time.time()))}
        with suppress(OSError):  # full disk: the words are shown by the rank all the same
            Path(file).write_text(json.dumps({"message": {"message": words, "extraInfo": extra}}), encoding="utf-8")


def _is_explained(error: BaseException) -> bool:
    """Whether the message says what was expected, what came and what to do: errors that this package raises for people."""
    from tp_dflash.parallel.decision import DecisionError
    from tp_dflash.training.preflight import PreflightError

    # Not its subclasses: what json or a codec says of a file needs the place that read it.
    return type(error) is ValueError or isinstance(error, (DecisionError, PreflightError))


def _is_consequence(error: BaseException) -> bool:
    """Whether another rank's end may be the reason: a lost peer, a closed connection, a collective that ran out of time."""
    from torch.distributed import DistError

    from tp_dflash.streams import StreamError

    words = ("connection", "timed out", "timeout", "peer", "gloo", "nccl")
    told = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return told or isinstance(error, (DistError, StreamError))


@contextmanager
def leaving_at_once(label: str) -> Iterator[Leaving]:
    """End the process with code 1 on any exception, its traceback and ``label`` (rank, role, GPU) shown first.

    Tearing down a process group whose other members wait in a collective would hang; the exit code is what torchrun needs.
    """
    faulthandler.enable()
    leaving = Leaving(label)
    try:
        yield leaving
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            raise
        leaving.fail(error)
