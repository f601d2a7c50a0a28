"""A name for this start of a job that all its ranks agree on, through a store that may remember earlier starts.

torchrun keeps its store when it starts the ranks again, and the nodes of a job count their restarts apart. What an earlier
start left there (addresses of ranks that are gone, its failure) must not be taken for this one's. So the first rank makes up
a name, and each rank believes it only if it comes with the number that this very process has drawn.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta

from torch.distributed import Store

_POLL_SECONDS = 0.05


class MeetingError(RuntimeError):
    """Not all ranks came."""


def agree_on_start(store: Store, rank: int, world_size: int, limit: timedelta) -> str:
    """The name, the same on all ranks of this start and on none of another; MeetingError if a rank does not come in time."""
    deadline = time.monotonic() + limit.total_seconds()
    mine = uuid.uuid4().hex
    store.set(f"came/{rank}", mine)
    name = mine if rank == 0 else _told_by_first(store, rank, mine, deadline)
    store.set(f"{name}/joined/{rank}", "1")
    if rank == 0:
        _tell_until_all_joined(store, name, world_size, deadline)
    return name


def _tell_until_all_joined(store: Store, name: str, world_size: int, deadline: float) -> None:
    told: list[str | None] | None = None
    while not store.check([f"{name}/joined/{rank}" for rank in range(world_size)]):
        came = [_read(store, f"came/{rank}") for rank in range(world_size)]
        if came != told:
            store.set("start", json.dumps({"name": name, "came": came}))
            told = came
        missing = [rank for rank in range(world_size) if not store.check([f"{name}/joined/{rank}"])]
        _wait(deadline, f"rank 0 waited in vain for ranks {missing} to start")


def _told_by_first(store: Store, rank: int, mine: str, deadline: float) -> str:
    while True:
        start = json.loads(_read(store, "start") or '{"name": "", "came": []}')
        if mine in start["came"]:
            return str(start["name"])
        _wait(deadline, f"rank {rank} waited in vain for rank 0 to start")


def _read(store: Store, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise MeetingError(f"{what}; see their logs, or raise training.timeout_seconds")
    time.sleep(_POLL_SECONDS)
