"""The scripts that start runs: clean by shellcheck, the right number of ranks, restarts and signals with a real torchrun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.job import write_config

LAUNCH = Path(__file__).parents[2] / "launch"
PLACEMENT: dict[str, object] = {"target": "0", "drafter": "1"}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    scripts = sorted([*LAUNCH.glob("*.sh"), LAUNCH / "slurm.sbatch"])
    found = subprocess.run(["shellcheck", "-x", *map(str, scripts)], capture_output=True, text=True, cwd=LAUNCH.parent)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("extra", "ranks"),
    [
        ([], 2),
        (["--set", "placement.target=0-3", "--set", "placement.drafter=4"], 5),
        (["--set=placement.head=1,2"], 3),
    ],
)
def test_ranks_a_node(tmp_path: Path, extra: list[str], ranks: int) -> None:
    config = write_config(tmp_path, "run", PLACEMENT)
    command = ["python", str(LAUNCH / "ranks_per_node.py"), str(config), *extra]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == str(ranks)


def test_torchrun_starts_killed_ranks_again_and_a_signal_to_the_script_stops_them(tmp_path: Path) -> None:
    config = write_config(tmp_path, "run", PLACEMENT, training={"epochs": 3000}, checkpoint={"every_steps": 20})
    run = tmp_path / "run"
    environment = os.environ | {"MAX_RESTARTS": "1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        script = subprocess.Popen(
            [str(LAUNCH / "single_node.sh"), str(config)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    _until(lambda: (run / "checkpoints" / "step-00000020").exists(), script, tmp_path)
    os.kill(_rank_pid(script.pid), signal.SIGKILL)
    _until(lambda: "resumed" in _kinds(run), script, tmp_path)
    _until(lambda: _newest(run) > 20, script, tmp_path)
    script.send_signal(signal.SIGUSR1)
    assert script.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
    assert _kinds(run) == ["started", "resumed", "stopped"]


def _until(condition, script: subprocess.Popen, folder: Path, limit: float = 150.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + limit
    while not condition():
        assert script.poll() is None, (folder / "log").read_text()[-3000:]
        assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(0.1)


def _kinds(run: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (run / "faults.jsonl").read_text().splitlines()]


def _newest(run: Path) -> int:
    return max(int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("step-*"))


def _rank_pid(script: int) -> int:
    """A rank: a grandchild of the script, for torchrun starts the ranks."""
    [torchrun] = _children(script)
    return _children(torchrun)[-1]


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
