"""The batch script under a real Slurm: to its end, and cut by preemption and by the time limit's signal, then requeued."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.job import complete, write_config
from tests.cli.test_resume import difference, exported
from tests.launch.own_slurm import can_start, slurm

ROOT = Path(__file__).parents[2]
PLACEMENT: dict[str, object] = {"target": "0", "drafter": "1"}

pytestmark = pytest.mark.skipif(not can_start(), reason="needs root and Slurm: munge, slurmctld, slurmd, slurm-client")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm") / "own") as environment:
        yield environment | {"OMP_NUM_THREADS": "1"}


def test_a_job_cut_twice_is_requeued_and_ends_with_the_same_bits(cluster: dict[str, str], tmp_path: Path) -> None:
    """Preemption (a requeue from outside: SIGTERM to all), then the signal before the time limit, then to the end."""
    changes: dict[str, dict[str, object]] = {"training": {"epochs": 24}, "checkpoint": {"every_steps": 10}}
    complete(write_config(tmp_path, "whole", PLACEMENT, **changes), 2)
    config, run = write_config(tmp_path, "run", PLACEMENT, **changes), tmp_path / "run"
    job = _submit(cluster, tmp_path, config)
    _until(lambda: (run / "checkpoints" / "step-00000010").exists(), tmp_path)
    _slurm(cluster, "scontrol", "requeue", job)
    _until(lambda: _kinds(run).count("resumed") == 1, tmp_path)
    first = _newest(run)
    _until(lambda: _newest(run) >= first + 10, tmp_path)
    _slurm(cluster, "scancel", "--batch", "--signal=USR1", job)
    _until(lambda: _kinds(run).count("resumed") == 2, tmp_path)
    _until(lambda: "finished" in _kinds(run), tmp_path)
    _until(lambda: "JobState=COMPLETED" in _slurm(cluster, "scontrol", "show", "job", job), tmp_path)
    assert _kinds(run) == ["started", "stopped", "resumed", "stopped", "resumed", "finished"]
    assert "Restarts=2" in _slurm(cluster, "scontrol", "show", "job", job)
    assert difference(exported(tmp_path / "whole"), exported(run)) == 0


def test_a_job_that_fails_ends_as_failed(cluster: dict[str, str], tmp_path: Path) -> None:
    config = write_config(tmp_path, "run", PLACEMENT, drafter={"target_layer_ids": [90, 91]})
    job = _submit(cluster, tmp_path, config, MAX_RESTARTS="0")
    _until(lambda: "JobState=FAILED" in _slurm(cluster, "scontrol", "show", "job", job), tmp_path)
    assert "change drafter.target_layer_ids" in (tmp_path / "slurm.log").read_text()


def _submit(cluster: dict[str, str], folder: Path, config: Path, **environment: str) -> str:
    command = ["sbatch", "--parsable", "--nodes=1", f"--output={folder}/slurm.log", "launch/slurm.sbatch", str(config)]
    told = subprocess.run(
        command, env=cluster | environment, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30
    )
    return told.stdout.strip()


def _slurm(cluster: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=cluster, check=True, capture_output=True, text=True, timeout=30).stdout


def _until(condition: Callable[[], bool], folder: Path, limit: float = 150.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        log = folder / "slurm.log"
        assert time.monotonic() < deadline, log.read_text()[-5000:] if log.exists() else "the job never started"
        time.sleep(0.2)


def _newest(run: Path) -> int:
    return max(int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("step-*"))


def _kinds(run: Path) -> list[str]:
    faults = run / "faults.jsonl"
    return [json.loads(line)["kind"] for line in faults.read_text().splitlines()] if faults.exists() else []
