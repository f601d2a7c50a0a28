"""Ranks of one start find each other's name in a store that is full of what earlier starts left."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tp_dflash.parallel.meeting import MeetingError, agree_on_start

LIMIT = timedelta(seconds=10)


def _start(store: Path, ranks: list[int], world_size: int, delays: dict[int, float] | None = None) -> list[str]:
    names: dict[int, str] = {}

    def one(rank: int) -> None:
        time.sleep((delays or {}).get(rank, 0.0))
        names[rank] = agree_on_start(dist.FileStore(str(store), world_size), rank, world_size, LIMIT)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    return [names[rank] for rank in ranks]


def test_every_start_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [_start(tmp_path / "store", [0, 1, 2], 3, delays) for delays in ({}, {0: 0.5}, {1: 0.5}, {2: 0.3, 1: 0.6})]
    assert all(len(set(start)) == 1 for start in names)
    assert len({start[0] for start in names}) == len(names)


def test_a_rank_that_came_to_an_earlier_start_only_is_missed(tmp_path: Path) -> None:
    _start(tmp_path / "store", [0, 1], 2)
    with pytest.raises(MeetingError, match=r"in vain for ranks \[1\]"):
        agree_on_start(dist.FileStore(str(tmp_path / "store"), 2), 0, 2, timedelta(seconds=0.5))
