"""A real disk that fills up in the middle of a run, and one that cannot be written: said on every rank, and nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import difference, exported
from tests.disks import can_mount, fill, read_only, small_disk
from tp_dflash.training.checkpoint_folder import find_fault

PLACE: dict[str, object] = {"target": "0", "drafter": "1,2", "tensor_parallel": 2}
# More than the checks before the start ask for.
DISK_MEBIBYTES = 300

pytestmark = pytest.mark.skipif(not can_mount(), reason="needs root, to mount a small disk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disks")


def configured(folder: Path, run: str) -> Path:
    changes: dict[str, dict[str, object]] = {
        "training": {"epochs": 10},
        "checkpoint": {"every_steps": 2, "keep_last": 2},
        "logging": {"every_steps": 1, "tensorboard": True},
    }
    return write_config(folder, run, PLACE, **changes)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    complete(configured(folder, "whole"), 3)
    return folder / "whole"


@contextmanager
def filled(folder: Path, run: str) -> Iterator[tuple[Job, Path, Path]]:
    """A run whose disk is full from step 9 on: the job, the filler, and what lets it pass step 21 once it exists."""
    filler, go, further = (folder / run / "filler", folder / f"{run}.go", folder / f"{run}.further")
    with small_disk(folder / run, DISK_MEBIBYTES):
        job = Job(configured(folder, run), 3, fault=f"wait at step 8 for {go}; wait at step 20 for {further}")
        job.until(folder / run / "checkpoints" / "step-00000006")
        fill(filler)
        go.touch()
        yield job, filler, further


def says_on_savers(job: Job, words: str) -> None:
    deadline = time.monotonic() + 60
    while not all(words in job.output(rank) for rank in (1, 2)):
        assert time.monotonic() < deadline, job.text()
        time.sleep(0.05)


def test_a_disk_that_stays_full_ends_the_run_and_the_next_start_goes_on(folder: Path, whole: Path) -> None:
    run = folder / "full"
    with filled(folder, "full") as (job, filler, further):
        further.touch()
        assert job.wait(60) == [1, 1, 1], job.text()
        for rank in (1, 2):
            assert "could not be saved" in job.output(rank)
            assert "No space left on device" in job.output(rank)
            assert "older checkpoints are as they were" in job.output(rank)
        assert "could not be saved" in job.output(0), "a rank that does not save is told why it ends"
        assert job.output(1).count("figures are not kept") == 1
        kept = sorted(path.name for path in (run / "checkpoints").iterdir())
        assert kept == ["step-00000004", "step-00000006"]
        assert all(find_fault(run / "checkpoints" / name) is None for name in kept)
        filler.unlink()
        again = complete(configured(folder, "full"), 3)
        assert "continued from" in again.output(1)
        assert "step-00000006" in again.output(1)
        assert difference(exported(whole), exported(run)) == 0


def test_a_disk_that_is_freed_costs_nothing(folder: Path, whole: Path) -> None:
    run = folder / "freed"
    with filled(folder, "freed") as (job, filler, further):
        says_on_savers(job, "could not be saved")
        filler.unlink()
        further.touch()
        assert job.wait(60) == [0, 0, 0], job.text()
        assert difference(exported(whole), exported(run)) == 0
        assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()][-1] == 30
        assert len(list((run / "checkpoints").glob("step-*"))) == 2


def test_a_folder_that_can_only_be_read_is_said_on_every_rank_and_stays_as_it_is(folder: Path, whole: Path) -> None:
    before = sorted(str(path) for path in whole.rglob("*"))
    with read_only(whole):
        job = Job(configured(folder, "whole"), 3)
        assert job.wait(60) == [1, 1, 1], job.text()
    for rank in range(3):
        assert "expected a run folder that can be written, got: Read-only file system" in job.output(rank)
        assert "training.run_folder" in job.output(rank)
    assert sorted(str(path) for path in whole.rglob("*")) == before


def test_a_disk_without_room_is_refused_before_anything_is_loaded(folder: Path, whole: Path) -> None:
    with small_disk(folder / "tiny", 1):
        job = Job(configured(folder, "tiny"), 3)
        assert job.wait(60) == [1, 1, 1], job.text()
    for rank in range(3):
        assert "MiB free; free some" in job.output(rank)
