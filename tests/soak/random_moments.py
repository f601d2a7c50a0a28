"""Kills or stops one rank at random moments of a small run, starts it again, and compares the weights bit by bit.

``python -m tests.soak.random_moments --moments 20 --seed 0``: a quarter of the moments lie inside a save, a quarter are
SIGTERM. Prints one line a moment and exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from pathlib import Path

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import difference, exported

PLACEMENT: dict[str, object] = {"target": "0", "drafter": "1,2", "head": "1-3", "tensor_parallel": 2}
ROLES = ["target", "drafter", "drafter", "head-only"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        changes: dict[str, dict[str, object]] = {"training": {"epochs": 40}, "checkpoint": {"every_steps": 7}}
        started = time.monotonic()
        complete(write_config(folder, "whole", PLACEMENT, **changes), 4)
        print(f"uninterrupted run: {time.monotonic() - started:.1f} s", flush=True)
        for moment in range(arguments.moments):
            print(_one(folder, moment, chance, changes), flush=True)


def _one(folder: Path, moment: int, chance: random.Random, changes: dict[str, dict[str, object]]) -> str:
    run = f"moment-{moment}"
    config = write_config(folder, run, PLACEMENT, **changes)
    rank, inside_save, is_kill = chance.randrange(4), moment % 4 == 0, moment % 4 != 3
    job = Job(config, 4)
    root = folder / run / "checkpoints"
    step = 7 * chance.randint(1, 12)
    if inside_save:
        job.until(root / f".step-{step:08d}.partial")
    else:
        job.until(root / "step-00000007")
        time.sleep(chance.uniform(0, 3))
    cut_at = time.monotonic()
    alive = job.ranks[rank].is_alive()
    if alive:
        job.signal(rank, signal.SIGKILL if is_kill else signal.SIGTERM)
    codes = job.wait(60)
    seconds = time.monotonic() - cut_at
    cut = sorted(path.name for path in root.glob("step-*"))[-1]
    complete(config, 4)
    worst = difference(exported(folder / "whole"), exported(folder / run))
    what = "SIGKILL" if is_kill else "SIGTERM"
    line = f"{moment:2d}: {what} of rank {rank} ({ROLES[rank]}){' inside a save' if inside_save else ''}, ended {codes} in "
    line += f"{seconds:.1f} s, newest {cut}{'' if alive else ' (the run was over)'}; largest difference {worst}"
    if worst:
        raise SystemExit(line)
    return line


if __name__ == "__main__":
    main()
