"""A run on two nodes loses its second one, torchrun and ranks, again and again; each time another takes its place and the run goes on.

``python -m tests.soak.lost_nodes --times 2``: each node is ``launch/multi_node.sh`` with MAX_RESTARTS on this machine. The first
node's torchrun must live through all of it, and the weights must be those of a run that nothing cut.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.job import write_config
from tests.cli.test_resume import difference, exported

LAUNCH = Path(__file__).parents[2] / "launch"
PLACEMENT: dict[str, object] = {"target": "0", "drafter": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes: dict[str, dict[str, object]] = {"training": {"epochs": 40}, "checkpoint": {"every_steps": 5}}
        whole, cut = (write_config(folder, run, PLACEMENT, **changes) for run in ("whole", "cut"))
        job = TwoNodes(whole, restarts=0)
        assert job.codes() == [0, 0], job.words()
        print("uninterrupted run: done", flush=True)
        job = TwoNodes(cut, restarts=times)
        newest = 0
        for loss in range(times):
            newest = job.until_after(newest)
            began = time.monotonic()
            job.lose_second()
            job.start(1)
            newest = job.until_after(newest)
            print(f"loss {loss + 1}: at step {newest} again after {time.monotonic() - began:.0f} s", flush=True)
        assert job.codes() == [0, 0], job.words()
        starts = (folder / "cut" / "faults.jsonl").read_text().count('"resumed"')
        worst = difference(exported(folder / "whole"), exported(folder / "cut"))
        print(f"the first node's torchrun ended with 0, the run was resumed {starts} times; largest difference {worst}")
        if worst or starts < times:
            raise SystemExit(job.words())


class TwoNodes:
    """Two torchruns of one job."""

    def __init__(self, config: Path, restarts: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.config = config
        self.environment = os.environ | {
            "NODES": "2",
            "HEAD": f"localhost:{port}",
            "JOB_ID": config.stem,
            "MAX_RESTARTS": str(restarts),
        }
        self.logs = [config.with_suffix(f".node-{node}.log") for node in range(2)]
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.start(0)
        # Both are this machine: the one that comes first holds the meeting point, and it must be the one that stays.
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert self.nodes[0].poll() is None, self.words()
            time.sleep(0.1)
        self.start(1)

    def start(self, node: int) -> None:
        with self.logs[node].open("a") as log:
            command = [str(LAUNCH / "multi_node.sh"), str(self.config)]
            self.nodes[node] = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

    def lose_second(self) -> None:
        """As a machine that is switched off: nothing of it lives a moment longer."""
        lost = self.nodes[1]
        for pid in (lost.pid, *_descendants(lost.pid)):
            os.kill(pid, signal.SIGKILL)
        lost.wait()

    def until_after(self, step: int, limit: float = 180.0) -> int:
        """Wait for a checkpoint of a later step; its step."""
        root = self.config.parent / self.config.stem / "checkpoints"
        steps: Callable[[], list[int]] = lambda: [int(path.name[5:]) for path in root.glob("step-*")]  # noqa: E731
        deadline = time.monotonic() + limit
        while max(steps(), default=0) <= step:
            assert self.nodes[0].poll() is None, self.words()
            assert time.monotonic() < deadline, self.words()
            time.sleep(0.1)
        return max(steps())

    def codes(self) -> list[int]:
        return [self.nodes[node].wait(300) for node in range(2)]

    def words(self) -> str:
        return "\n".join(log.read_text()[-4000:] for log in self.logs)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *_descendants(child)]
    return found


if __name__ == "__main__":
    main()
