"""A run that was cut and went on ends with the same bits as one that was not, whatever cut it and wherever."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.job import Job, complete, write_config

PLACEMENT = {"target": "0", "drafter": "1,2", "head": "1-3", "tensor_parallel": 2}
ROLES = {"target": 0, "drafter": 1, "head-only": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the run that nothing cut."""
    complete(configured(folder, "uninterrupted"), 4)
    return exported(folder / "uninterrupted")


def configured(folder: Path, run: str, **changes: dict[str, object]) -> Path:
    """36 steps, 12 epochs of 3; a checkpoint at every 3rd step, which is an epoch's end,."""
    return write_config(folder, run, **({"placement": PLACEMENT} | changes), training={"epochs": 12})


def exported(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "export" / "model.safetensors")


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def faults(run: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (run / "faults.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("role", "inside_save"), [("target", False), ("drafter", True), ("head-only", False)])
def test_a_killed_rank_ends_the_job_and_the_next_start_ends_with_the_same_bits(
    folder: Path, expected: dict[str, torch.Tensor], role: str, inside_save: bool
) -> None:
    run = f"killed-{role}"
    config = configured(folder, run)
    job = Job(config, 4)
    checkpoints = folder / run / "checkpoints"
    job.until(checkpoints / ".step-00000006.partial" if inside_save else checkpoints / "step-00000003")
    job.kill(ROLES[role])
    killed_at = time.monotonic()
    codes = job.wait(60)
    assert time.monotonic() - killed_at < 60
    assert codes[ROLES[role]] == -signal.SIGKILL
    assert all(code == 1 for rank, code in enumerate(codes) if rank != ROLES[role]), job.text()
    assert f"rank {ROLES[role]}, {role}, node 0, GPU {ROLES[role]} is gone without a word" in job.text()
    complete(config, 4)
    assert difference(expected, exported(folder / run)) == 0
    assert "resumed" in faults(folder / run)


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 2), (signal.SIGINT, 3)])
def test_a_signal_to_any_rank_stops_all_after_a_save(
    folder: Path, expected: dict[str, torch.Tensor], number: signal.Signals, rank: int
) -> None:
    run = f"stopped-{number.name}"
    config = configured(folder, run)
    job = Job(config, 4)
    job.until(folder / run / "checkpoints" / "step-00000003")
    job.signal(rank, number)
    assert job.wait(30) == [0, 0, 0, 0], job.text()
    assert not (folder / run / "export").exists()
    assert faults(folder / run)[-1] == "stopped"
    complete(config, 4)
    assert difference(expected, exported(folder / run)) == 0


def test_the_time_limit_stops_like_a_signal(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    config = configured(folder, "limited")
    starts = 0
    while not (folder / "limited" / "export").exists():
        complete(config, 4, ["--max-time", "0.01"] if starts < 3 else [])
        starts += 1
    assert starts <= 4
    assert difference(expected, exported(folder / "limited")) == 0


ONE_TARGET = {"target": "0", "drafter": "1,2", "tensor_parallel": 2}
LAYOUTS = {
    "three targets": (5, {"target": "0-2", "drafter": "3,4", "tensor_parallel": 2}, 0.0),
    "tensor parallel 1": (3, {"target": "0", "drafter": "1,2", "tensor_parallel": 1}, 1e-6),
    "colocated": (2, {"target": "colocated", "drafter": "0,1", "tensor_parallel": 2}, 0.0),
    "one drafter": (2, {"target": "0", "drafter": "1"}, 1e-6),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_goes_on_with_other_ranks(folder: Path, name: str) -> None:
    """Cut in the middle of an epoch, at step 4 of 9; one drafter takes two packs a step, as the two did."""
    whole = folder / "whole"
    if not whole.exists():
        kept = {"every_steps": 4, "keep_last": 9}
        complete(write_config(folder, "whole", ONE_TARGET, training={"epochs": 3}, checkpoint=kept), 3)
    world, placement, tolerance = LAYOUTS[name]
    run = name.replace(" ", "-")
    cut(whole, folder / run, step=4)
    changed = {"epochs": 3, "accumulation": 2 if name == "one drafter" else 1}
    complete(write_config(folder, run, placement, training=changed), world)
    assert difference(exported(whole), exported(folder / run)) <= tolerance


def cut(whole: Path, run: Path, step: int) -> None:
    """A run as a job that died after the checkpoint of ``step`` would have left it."""
    shutil.copytree(whole, run)
    shutil.rmtree(run / "export")
    for path in (run / "checkpoints").glob("step-*"):
        if path.name != f"step-{step:08d}":
            shutil.rmtree(path)
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == [f"step-{step:08d}"]


def figures(run: Path) -> dict[int, dict[str, float]]:
    """Logged figures by step."""
    return {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}


RESUMED = {
    "in the midst of an epoch": (7, 2, {"drafter": "0,1"}, 1, 0.0),
    "at an epoch's end": (6, 2, {"drafter": "0,1"}, 1, 0.0),
    "during the warm-up": (2, 2, {"drafter": "0,1"}, 1, 0.0),
    "on one rank with both packs": (7, 1, {"drafter": "0"}, 2, 1e-5),
}


@pytest.mark.parametrize("where", RESUMED)
def test_loss_and_rate_of_every_step_are_those_of_the_run_that_nothing_cut(folder: Path, where: str) -> None:
    """Warm-up of four steps, then down; nothing jumps where the run went on."""
    whole = folder / "logged"
    optimizer = {"warmup_ratio": 0.2, "learning_rate": 1e-2}
    settings = {"optimizer": optimizer, "logging": {"every_steps": 1}}
    if not whole.exists():
        kept = {"every_steps": 1, "keep_last": 99}
        complete(
            write_config(folder, "logged", {"drafter": "0,1"}, training={"epochs": 6}, checkpoint=kept, **settings), 2
        )
    step, world, placement, accumulation, tolerance = RESUMED[where]
    run = where.replace(" ", "-").replace("'", "")
    cut(whole, folder / run, step)
    (folder / run / "metrics.jsonl").unlink()
    training = {"epochs": 6, "accumulation": accumulation}
    complete(write_config(folder, run, placement, training=training, **settings), world)
    expected, found = figures(whole), figures(folder / run)
    assert sorted(found) == list(range(step + 1, max(expected) + 1))
    rates = [expected[index]["learning_rate"] for index in sorted(expected)]
    assert rates.index(max(rates)) == 3, "the fourth step ends the warm-up"
    for index, line in found.items():
        assert line["learning_rate"] == expected[index]["learning_rate"]
        assert line["loss"] == pytest.approx(expected[index]["loss"], rel=tolerance, abs=0)
