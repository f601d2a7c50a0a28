"""One job a run folder: the lock names its holder, waits a little, and goes with the process however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from tp_dflash.training.run_lock import RunFolderError, lock_run

_context = multiprocessing.get_context("forkserver")


def _hold(path: Path, held: Path) -> None:
    lock = lock_run(path)
    held.touch()
    time.sleep(60)
    lock.close()


@pytest.fixture
def holder(tmp_path: Path):
    process = _context.Process(target=_hold, args=(tmp_path / "run" / ".lock", tmp_path / "held"))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.02)
    yield process
    process.kill()
    process.join()


def test_a_second_job_is_told_who_holds_it(tmp_path: Path, holder) -> None:
    with pytest.raises(RunFolderError, match=f"in use by process {holder.pid} on .* since"):
        lock_run(tmp_path / "run" / ".lock", patience_seconds=0.5)


def test_a_killed_holder_holds_nothing(tmp_path: Path, holder) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    lock = lock_run(tmp_path / "run" / ".lock", patience_seconds=5)
    assert (tmp_path / "run" / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    lock.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunFolderError, match="expected a folder that can be written, got: (Not a directory|File exists)"
    ):
        lock_run(tmp_path / "file" / ".lock")
