"""What fails on one rank is told by it first and ends all; what a disk or a folder does wrong is said on every rank."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import difference, exported, faults

TWO = {"target": "0", "drafter": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run of ten steps whose checkpoints of steps 3, 6, 9 and 10 are all kept."""
    complete(write_config(folder, "whole", TWO, checkpoint={"every_steps": 3, "keep_last": 9}), 2)
    return folder / "whole"


def begun(whole: Path, run: str) -> Path:
    """A copy of the run without its end: checkpoints of steps 3 and 6."""
    copy = whole.parent / run
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "export")
    for name in ("step-00000009", "step-00000010"):
        shutil.rmtree(copy / "checkpoints" / name)
    return copy


def fails(config: Path, world: int, extra: tuple[str, ...] = (), fault: str | None = None) -> Job:
    """A job that has to end by itself within a minute of the first rank's failure, with code 1 on every rank.

    torchrun ends its report with the words of the rank that it saw end first, which may be any: each must have left some.
    """
    job = Job(config, world, extra, fault=fault)
    # Imports and the loading before the failure take what they take where the machine is busy.
    deadline = time.monotonic() + 240
    while all(rank.is_alive() for rank in job.ranks) and "failed" not in job.text():
        assert time.monotonic() < deadline, job.text()
        time.sleep(0.05)
    codes = job.wait(60)
    assert set(codes) == {1}, f"exit codes {codes}\n{job.text()}"
    assert all(job.reported(rank) for rank in range(world))
    return job


@pytest.mark.parametrize(("rank", "role"), [(0, "target"), (1, "drafter"), (3, "head-only")])
def test_a_rank_that_raises_is_the_one_whose_traceback_is_shown(folder: Path, rank: int, role: str) -> None:
    placement = {"target": "0", "drafter": "1,2", "head": "1-3", "tensor_parallel": 2}
    job = fails(write_config(folder, f"raises-{role}", placement), 4, fault=f"raise on rank {rank} at step 3")
    assert "Traceback" in job.output(rank)
    assert "RuntimeError: made to fail at step 3" in job.output(rank)
    assert f"[rank {rank}, {role}, node 0, GPU {rank}] failed" in job.output(rank)
    for other in set(range(4)) - {rank}:
        assert "Traceback (most recent call last)" not in job.output(other).replace("--- traceback", "")
        cause = f"rank {rank}, {role}, node 0, GPU {rank}: RuntimeError: made to fail at step 3"
        assert cause in job.output(other)
        assert cause in job.reported(other)
    assert not list((folder / f"raises-{role}" / "checkpoints").glob(".*partial"))
    assert "made to fail" in (folder / f"raises-{role}" / "logs" / f"rank-{rank}.log").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": {"max_length": 200, "token_budget": 256}},
            "data.max_length: expected at most the target's 128 positions",
        ),
        ({"drafter": {"target_layer_ids": [90, 91]}}, "change drafter.target_layer_ids"),
        ({"data": {"train": ["nowhere.jsonl"]}}, "expected a file"),
    ],
    ids=["sizes", "layers", "files"],
)
def test_a_persons_mistake_is_answered_without_a_traceback(folder: Path, changes: dict, words: str) -> None:
    """Also where only the configuration's sizes are wrong, and no GPU's memory is planned for. The log has the traceback."""
    run = f"mistake-{next(iter(changes))}-{len(words)}"
    job = fails(write_config(folder, run, TWO, **changes), 2)
    for rank in (0, 1):
        assert words in job.output(rank)
        assert words in job.reported(rank)
        assert "Traceback" not in job.output(rank)
        assert "Traceback" in (folder / run / "logs" / f"rank-{rank}.log").read_text()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("drafter.target_layer_ids=[90,91]", r"rank \d, .* ValueError: expected layer ids .* change drafter"),
        ("placement.drafter=1,2", "tp-dflash: placement: expected 3 ranks a node .* start with: torchrun"),
    ],
)
def test_torchruns_report_ends_with_what_failed_first(folder: Path, wrong: str, words: str) -> None:
    """A report of torchrun is longer than a screen: the cause and its remedy must stand in its last lines."""
    config = write_config(folder, "told", {"target": "0", "drafter": "1"})
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tp_dflash", "train"]
    told = subprocess.run(
        [sys.executable, *command, str(config), "--set", wrong], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 1
    assert re.search(words, " ".join(told.stderr.splitlines()[-4:])), told.stderr


def test_a_rank_alone_ends_at_once_whatever_is_wrong(folder: Path) -> None:
    """Without torchrun nobody else has to be told, and nothing of the told must outlive the process."""
    config = write_config(folder, "alone", {"target": "colocated", "drafter": "0"})
    command = [sys.executable, "-m", "tp_dflash", "train", str(config)]
    for wrong, words in (
        ('data.train="nowhere.jsonl"', "expected a file"),
        ("drafter.target_layer_ids=[90,91]", "change drafter"),
    ):
        told = subprocess.run([*command, "--set", wrong], capture_output=True, text=True, timeout=40)
        assert told.returncode == 1
        assert words in told.stderr


def test_a_disk_that_is_full_costs_no_checkpoint_and_is_said_on_every_rank(whole: Path) -> None:
    """The system refuses every write beyond a few kB, as a full disk or a quota does."""
    run = begun(whole, "full")
    config = write_config(whole.parent, "full", TWO, checkpoint={"every_steps": 1})
    job = Job(config, 2, fault="no file over 8192 bytes")
    assert set(job.wait(60)) == {1}, job.text()
    for rank in (0, 1):
        assert "could not be saved" in job.output(rank), job.text()
        assert "older checkpoints are as they were" in job.output(rank)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert faults(run).count("save failed") == 3
    complete(write_config(whole.parent, "full", TWO), 2)
    assert difference(exported(whole), exported(run)) == 0


def test_a_damaged_newest_checkpoint_and_strange_folders_are_passed_over(whole: Path) -> None:
    run = begun(whole, "damaged")
    newest = run / "checkpoints" / "step-00000006"
    weights = next(newest.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    (run / "checkpoints" / "99999999").mkdir()
    (run / "checkpoints" / "step-00000099").mkdir()
    job = complete(write_config(whole.parent, "damaged", TWO, checkpoint={"keep_last": 1}), 2)
    assert "the manifest says" in job.text()
    assert "step-00000006" in job.text()
    assert f"continued from {run / 'checkpoints' / 'step-00000003'}" in job.text()
    assert difference(exported(whole), exported(run)) == 0


def test_all_checkpoints_damaged_is_an_error_not_a_new_run(whole: Path) -> None:
    run = begun(whole, "lost")
    for manifest in (run / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    job = fails(write_config(whole.parent, "lost", TWO), 2)
    for rank in (0, 1):
        assert "none of the checkpoints is complete" in job.output(rank)


def test_two_jobs_on_one_run_folder(folder: Path) -> None:
    config = write_config(folder, "shared", TWO, training={"epochs": 2000})
    first = Job(config, 2)
    first.until(folder / "shared" / "checkpoints" / "step-00000003")
    second = fails(config, 2)
    for rank in (0, 1):
        assert "expected a run folder of this job alone, got one in use by process" in second.output(rank)
    first.signal(0, 15)
    assert first.wait(60) == [0, 0], first.text()


def test_a_run_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "a file").write_text("")
    place = {"run_folder": str(folder / "a file" / "run")}
    job = fails(write_config(folder, "unwritable", TWO, training=place), 2)
    for rank in (0, 1):
        assert "expected a run folder that can be written, got: Not a directory" in job.output(rank)


def test_another_configuration_does_not_go_on_from_a_checkpoint(whole: Path) -> None:
    begun(whole, "other")
    job = fails(write_config(whole.parent, "other", TWO, training={"seed": 3}), 2)
    for rank in (0, 1):
        assert "expected a checkpoint of this configuration" in job.output(rank)


def test_steps_without_a_finite_gradient_are_skipped_counted_and_named(folder: Path) -> None:
    run = folder / "skipped"
    job = Job(write_config(folder, "skipped", {"drafter": "0,1"}), 2, fault="infinite loss on rank 1 at step 2")
    assert job.wait(60) == [0, 0], job.text()
    [skipped] = [line for line in _lines(run / "faults.jsonl") if line["kind"] == "step skipped"]
    assert skipped["step"] == 2
    assert skipped["details"]["documents"], "the documents of rank 1's pack"
    assert sum(line.get("skipped_steps", 0) for line in _lines(run / "metrics.jsonl")) == 1


def test_too_many_skipped_steps_in_a_row_end_the_run(folder: Path) -> None:
    config = write_config(folder, "hopeless", {"drafter": "0,1"}, training={"max_bad_steps": 3})
    job = fails(config, 2, fault="infinite loss on rank 1 at step all")
    assert "expected finite gradients, got" in job.text()


def test_documents_without_finite_features_are_dropped_counted_and_named(folder: Path) -> None:
    run = folder / "dropped"
    job = Job(write_config(folder, "dropped", TWO), 2, fault="nan features of document 4")
    assert job.wait(60) == [0, 0], job.text()
    dropped = [line for line in _lines(run / "faults.jsonl") if line["kind"] == "documents dropped"]
    assert [line["details"]["documents"] for line in dropped] == [[4], [4]]
    assert sum(line.get("dropped_documents", 0) for line in _lines(run / "metrics.jsonl")) == 2


def test_running_out_of_memory_names_phase_plan_and_change(folder: Path) -> None:
    job = fails(write_config(folder, "memory", TWO), 2, fault="out of memory on rank 1 at step 3")
    words = job.output(1)
    assert "out of memory in the drafter's forward pass and the head loss of step 3 on a drafter rank" in words
    assert "the plan says" in words
    assert "cheapest change: " in words
    assert "--set" in words


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("rank", [0, 2], ids=["target", "drafter"])
def test_a_document_that_one_rank_alone_cannot_read_ends_all(folder: Path, rank: int) -> None:
    config = write_config(folder, f"unreadable-{rank}", {"target": "0,1", "drafter": "2,3"})
    wrong = "; ".join(f"document {document} cannot be read on rank {rank}" for document in range(13))
    job = fails(config, 4, fault=wrong)
    assert "OSError: made unreadable: document" in job.output(rank)
    for other in set(range(4)) - {rank}:
        assert re.search(f"rank {rank}, .*: OSError: made unreadable", job.output(other)), job.text()


def test_a_bad_line_that_the_first_rank_meets_is_said_on_every_rank(folder: Path) -> None:
    """One rank prepares the data for all; with data.strict its first bad line ends the run."""
    config = write_config(folder, "strict", {"target": "0", "drafter": "1,2"}, data={"strict": True})
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "bad.jsonl").write_text("".join([*lines[:3], '{"text": "w1 w2\n', *lines[3:]]))
    job = fails(config, 3, ("--set", f'data.train=["{folder}/bad.jsonl"]'))
    for rank in range(3):
        assert f"{folder}/bad.jsonl:4: " in job.output(rank)
        assert "correct the line or set data.strict = false" in job.output(rank)
    assert not (folder / "strict" / "checkpoints").exists()
