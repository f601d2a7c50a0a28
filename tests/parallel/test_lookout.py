"""Ranks learn of a failure, an end or a lost store within a few looks, and the first rank, which may hold the store, leaves last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from tp_dflash.parallel import Lookout, Neighbourhood

# A stand-in for a process's end can only end its thread.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

LABELS = ("rank 0, target, node 0, GPU 0", "rank 1, drafter, node 0, GPU 1")


class _Left:
    """Stands for a process that ends: keeps when and with which code, and ends the thread that asked for it."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.at = 0.0
        self.done = threading.Event()

    def __call__(self, code: int) -> None:
        self.code, self.at = code, time.monotonic()
        self.done.set()
        raise SystemExit


def _lookout(store: Path, rank: int, report: Callable[[str], None] = lambda words: None) -> tuple[Lookout, _Left]:
    left = _Left()
    place = Neighbourhood(rank, LABELS, (0, 0), None, 40.0)
    lookout = Lookout(dist.FileStore(str(store), 2), place, report, left)
    lookout.start(lambda: None)
    return lookout, left


def test_a_failure_ends_the_other_rank_with_its_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reported: list[str] = []
    first, first_left = _lookout(tmp_path / "store", 0, reported.append)
    second, second_left = _lookout(tmp_path / "store", 1)
    assert second.claim_failure("ValueError: bad line\nin two lines")
    assert not first.claim_failure("what followed from it")
    second.before_leaving()
    assert first_left.done.wait(5)
    assert second_left.done.wait(5)
    assert (first_left.code, second_left.code) == (1, 1)
    words = f"[{LABELS[0]}] leaves, because this failed first: {LABELS[1]}: ValueError: bad line in two lines"
    assert words in capfd.readouterr().err
    assert reported == [words]


def test_the_reason_is_reported_before_the_first_rank_waits_for_the_others(tmp_path: Path) -> None:
    """Whoever launched the ranks may end this one during that wait: the reason must be on disk by then."""
    left, at = _Left(), []
    place = Neighbourhood(0, LABELS, (0, 0), None, 40.0)
    lookout = Lookout(
        dist.FileStore(str(tmp_path / "store"), 2), place, lambda words: at.append(time.monotonic()), left
    )
    lookout.claim_failure("ValueError: bad line")
    lookout.start(lambda: None)
    assert left.done.wait(8)
    assert len(at) == 1
    assert left.at - at[0] > 2.0


def test_the_first_rank_waits_for_the_others_before_it_leaves(tmp_path: Path) -> None:
    """A rank that is not there yet could not read why the run ended, if the store went away with the first rank."""
    first, first_left = _lookout(tmp_path / "store", 0)
    began = time.monotonic()
    first.end("stopped and saved")
    time.sleep(1.5)
    assert not first_left.done.is_set()
    _, second_left = _lookout(tmp_path / "store", 1)
    assert second_left.done.wait(5)
    assert first_left.done.wait(5)
    assert (first_left.code, second_left.code) == (0, 0)
    assert first_left.at - began > 1.5


def test_the_first_rank_does_not_wait_for_ever(tmp_path: Path) -> None:
    first, first_left = _lookout(tmp_path / "store", 0)
    first.end("stopped and saved")
    assert first_left.done.wait(8)


def test_ranks_that_have_done_their_part_leave_together(tmp_path: Path) -> None:
    lookouts = [_lookout(tmp_path / "store", rank) for rank in range(2)]
    threads = [threading.Thread(target=lookout.finish, args=(10.0,)) for lookout, _ in lookouts]
    threads[0].start()
    time.sleep(0.5)
    assert threads[0].is_alive()
    threads[1].start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert all(left.code is None for _, left in lookouts)


def test_a_rank_that_is_done_does_not_take_another_ones_failure_for_its_end(tmp_path: Path) -> None:
    """The last save of a drafter fails while a target waits to leave: both have left then, and the job has failed."""
    first, first_left = _lookout(tmp_path / "store", 0)
    second, _ = _lookout(tmp_path / "store", 1)
    waiting = threading.Thread(target=first.finish, args=(10.0,))
    waiting.start()
    assert second.claim_failure("SaveError: disk full")
    second.before_leaving()
    assert first_left.done.wait(5)
    assert first_left.code == 1


class _GoneStore(dist.FileStore):
    """A store whose server can be taken away."""

    gone = False

    def check(self, keys: list[str]) -> bool:
        if self.gone:
            raise dist.DistNetworkError("Connection reset by peer")
        return super().check(keys)


@pytest.mark.parametrize("has_left", [False, True])
def test_a_store_that_is_gone_is_a_failure_unless_this_rank_has_done_its_part(
    tmp_path: Path, has_left: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    store, left = _GoneStore(str(tmp_path / "store"), 2), _Left()
    lookout = Lookout(store, Neighbourhood(1, LABELS, (0, 0), None, 40.0), print, left)
    lookout.start(lambda: None)
    waiting = threading.Thread(target=lookout.finish, args=(10.0,))
    if has_left:
        waiting.start()
        time.sleep(0.3)
    store.gone = True
    if has_left:
        waiting.join(5)
        assert not waiting.is_alive()
        assert left.code is None
    else:
        assert left.done.wait(5)
        assert left.code == 1
        assert "the job's store (on the first node) is gone: Connection reset by peer" in capfd.readouterr().err
