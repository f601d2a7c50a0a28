"""Jobs of ``tp-dflash train`` as torchrun would start them, without torchrun's seconds: ranks from a forkserver, a store here.

Each rank runs the real command with the environment that torchrun gives it; its output goes to a file. The parent plays the
agent that hosts the store, and can kill ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.ranks import context
from tests.whole_runs import make_folder, settings


class Job:
    """A running job of ``world`` ranks on ``nodes`` nodes."""

    def __init__(
        self, config: Path, world: int, extra: Sequence[str] = (), nodes: int = 1, fault: str | None = None
    ) -> None:
        """fault: see ``made_faults``; arranged on every rank."""
        self.folder = config.parent
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.outputs = [self.folder / f"{config.stem}-{time.monotonic_ns()}-{rank}.out" for rank in range(world)]
        per_node = world // nodes
        self.ranks = [
            context.Process(
                target=_rank_main,
                args=(
                    _environment(rank, world, per_node, self.store.port, _report_of(self.outputs[rank])),
                    config,
                    list(extra),
                    self.outputs[rank],
                    fault,
                ),
            )
            for rank in range(world)
        ]
        self.started = time.monotonic()
        for rank in self.ranks:
            rank.start()

    def kill(self, rank: int) -> None:
        self.signal(rank, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, limit: float = 100.0) -> list[int]:
        """Exit codes of all ranks; AssertionError with their last words if one has not ended in time."""
        deadline = time.monotonic() + limit
        for rank in self.ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        late = [number for number, rank in enumerate(self.ranks) if rank.is_alive()]
        for number in late:
            self.signal(number, signal.SIGKILL)
            self.ranks[number].join()
        assert not late, f"ranks {late} still ran after {limit:.0f} s:\n{self.text()}"
        return [int(rank.exitcode or 0) for rank in self.ranks]

    def output(self, rank: int) -> str:
        return self.outputs[rank].read_text() if self.outputs[rank].exists() else ""

    def reported(self, rank: int) -> str:
        """What torchrun would quote of this rank at the end of its report."""
        return json.loads(_report_of(self.outputs[rank]).read_text())["message"]["message"]

    def text(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self.output(rank)[-3000:]}" for rank in range(len(self.ranks)))

    def until(self, path: Path, limit: float = 90.0) -> None:
        """Wait until a file or folder exists."""
        deadline = time.monotonic() + limit
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} did not come:\n{self.text()}"
            assert any(rank.is_alive() for rank in self.ranks), f"the job ended before {path}:\n{self.text()}"
            time.sleep(0.01)


def write_config(folder: Path, run: str, placement: dict[str, object], **changes: dict[str, object]) -> Path:
    """A configuration file of a tiny run in ``folder / run``; makes model and data on first use."""
    if not (folder / "train.jsonl").exists():
        make_folder(folder)
    path = folder / f"{run}.toml"
    sections = settings(folder, run, placement, **changes)
    path.write_text("".join(f"[{name}]\n{_lines(values)}\n" for name, values in sections.items()))
    return path


def complete(config: Path, world: int, extra: Sequence[str] = (), nodes: int = 1) -> Job:
    """Run a job to its end; every rank must exit with 0."""
    job = Job(config, world, extra, nodes)
    codes = job.wait()
    assert set(codes) == {0}, f"exit codes {codes}\n{job.text()}"
    return job


def _lines(values: Any) -> str:
    return "\n".join(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _report_of(output: Path) -> Path:
    return output.with_suffix(".error.json")


def _environment(rank: int, world: int, per_node: int, port: int, report: Path) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(report),
    }


def _rank_main(environment: dict[str, str], config: Path, extra: list[str], output: Path, fault: str | None) -> None:
    import torch

    from tests.cli.made_faults import arrange
    from tp_dflash.cli import main

    torch.set_num_threads(1)
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.argv = ["tp-dflash", "train", str(config), *extra]
    if fault is not None:
        arrange(fault, int(environment["RANK"]))
    main()
