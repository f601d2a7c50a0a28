"""Train the same short run with one choice changed at a time, several runs at once, and say what each choice was worth.

Comes in: `launch/configs/smollm2.toml`, the answers that `launch/smollm2.sh` had written. Goes out: a run folder for each
variant and seed under --runs, and in --out `ablations.json` with every run's figures. A run that is finished is not run
again. All have equal steps, packs, prompts and data order; acceptance is decoded greedily with the target on the same unseen
prompts.

    python -m launch.smollm2.ablations --steps 800 --jobs 8
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tp_dflash.parallel.versions import versions

CONFIG = "launch/configs/smollm2.toml"
# Small packs: many updates in little time, and room for many runs on one GPU.
SHAPE = {
    "drafter.compile": "false",
    "data.token_budget": "4096",
    "anchors.per_pack": "512",
    "anchors.per_document": "1024",
    "objective.ce": "0.5",
    "objective.kl": "0.5",
    "objective.weights": "decay",
    "optimizer.name": "muon",
    "optimizer.learning_rate": "1e-3",
    "logging.every_steps": "50",
    "logging.tensorboard": "false",
    "checkpoint.every_steps": "100000",
    "evaluation.baseline_prompts": "0",
    "evaluation.batch_size": "64",
    "evaluation.max_new_tokens": "128",
}
BASE = "base"
BASE_SEEDS = (0, 1, 2)
# What is changed, by name; "base" is kl + ce in equal parts, Muon at 1e-3, gamma 7, block 16, 512 random anchors, 5 full layers,
# fp32 logits. In the order of their importance: where time runs out, the last ones are missing.
VARIANTS: dict[str, dict[str, str]] = {
    BASE: {},
    "AdamW": {"optimizer.name": "adamw"},
    "learning rate 3e-3": {"optimizer.learning_rate": "3e-3"},
    "gamma 3": {"objective.gamma": "3"},
    "dpace weights": {"objective.weights": "dpace"},
    "ce alone": {"objective.ce": "1.0", "objective.kl": "0.0"},
    "kl alone": {"objective.ce": "0.0", "objective.kl": "1.0"},
    "lk": {"objective.ce": "0.0", "objective.kl": "0.0", "objective.lk": "1.0"},
    "with confidence penalty 0.1": {"objective.cap": "0.1"},
    "1024 anchors a pack": {"anchors.per_pack": "1024"},
    "256 anchors a pack": {"anchors.per_pack": "256"},
    "block 8": {"drafter.block_size": "8"},
    "block 24": {"drafter.block_size": "24"},
    "1 layer": {"drafter.num_layers": "1"},
    "3 layers": {"drafter.num_layers": "3"},
    "anchors on a grid": {"anchors.draw": "grid"},
    "bf16 logits": {"training.logits_precision": "bfloat16"},
    "sliding window 128": {"drafter.sliding_window": "128"},
}


@dataclass(frozen=True)
class Job:
    """One run: a variant and a seed."""

    variant: str
    seed: int
    folder: Path

    def command(self, steps: int, answers: Path, prompts: str) -> list[str]:
        settings = {
            **SHAPE,
            "training.max_steps": str(steps),
            "training.seed": str(self.seed),
            "training.run_folder": str(self.folder),
            "data.train": json.dumps([str(answers / "greedy.jsonl"), str(answers / "sampled.jsonl")]),
            "evaluation.prompts": prompts,
            **VARIANTS[self.variant],
        }
        sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "tp_dflash", "train", CONFIG, *sets]

    @property
    def finished(self) -> bool:
        return (self.folder / "report.json").is_file()

    def figures(self) -> dict[str, Any]:
        """What the run wrote: decoded acceptance of each set, and the last figures of the training log."""
        report = json.loads((self.folder / "report.json").read_text())
        evaluation = report["evaluations"][max(report["evaluations"], key=int)]
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        last = [line for line in lines if "loss" in line][-1]
        return {
            "variant": self.variant,
            "seed": self.seed,
            "acceptance": {each["name"]: each["acceptance_length"] for each in evaluation["sets"]},
            "kl": last["kl"],
            "accuracy_first_position": last["accuracy_by_position"][1],
            "streak": last["streak"],
            "tokens_per_second": report["tokens_per_second"],
        }


def run_all(jobs: list[Job], commands: list[list[str]], at_once: int, deadline: float) -> None:
    """Run the commands, so many at once; none is begun after the deadline (seconds of the monotonic clock)."""
    waiting = [(job, command) for job, command in zip(jobs, commands, strict=True) if not job.finished]
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < at_once and time.monotonic() < deadline:
            job, command = waiting.pop(0)
            job.folder.mkdir(parents=True, exist_ok=True)
            with (job.folder / "output.log").open("wb") as log:
                running.append((job, subprocess.Popen(command, env=environment, stdout=log, stderr=log)))
        if time.monotonic() >= deadline:
            waiting.clear()
        time.sleep(0.5)
        for job, process in [pair for pair in running if pair[1].poll() is not None]:
            running.remove((job, process))
            print(f"{job.folder}: {'done' if job.finished else f'failed, see {job.folder}/output.log'}", flush=True)


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a variant: mean acceptance on the unseen prompts, its spread over seeds (None of one), the difference to the base."""
    rows = []
    for variant in VARIANTS:
        runs = [run for run in found if run["variant"] == variant]
        if runs:
            lengths = [run["acceptance"]["indistribution"] for run in runs]
            row = {"variant": variant, "seeds": len(runs), "acceptance": mean(lengths)}
            spread = max(lengths) - min(lengths) if len(lengths) > 1 else None
            row |= {"spread": spread, "kl": mean(run["kl"] for run in runs)}
            rows.append(row)
    base = next((row["acceptance"] for row in rows if row["variant"] == BASE), None)
    return [row | {"to_base": None if base is None else row["acceptance"] - base} for row in rows]


def main() -> None:
    """Command line: run what is missing, write the table."""
    import torch

    parser = argparse.ArgumentParser(description="One choice changed at a time.")
    parser.add_argument("--answers", type=Path, default=Path("data/smollm2/answers"), help="folder of answers")
    parser.add_argument("--prompts", type=Path, default=Path("data/smollm2/prompts"), help="folder of prompts")
    parser.add_argument("--runs", type=Path, default=Path("runs/smollm2-ablations"), help="folder of run folders")
    parser.add_argument("--out", type=Path, default=Path("docs/results/ablations.json"), help="file of the figures")
    parser.add_argument("--steps", type=int, default=800, help="steps of each run")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="names, separated by commas")
    parser.add_argument("--seeds", default="0", help="seeds of every variant; the base has three")
    parser.add_argument("--max-seconds", type=float, default=float("inf"), help="begin no run after so long")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    names = arguments.variants.split(",")
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        parser.error(f"expected variants of {', '.join(VARIANTS)}, got {unknown[0]!r}")
    pairs = [
        (name, seed)
        for seed in sorted({*seeds, *BASE_SEEDS})
        for name in names
        if seed in (BASE_SEEDS if name == BASE else seeds)
    ]
    jobs = [Job(name, seed, arguments.runs / f"{name.replace(' ', '-')}-{seed}") for name, seed in pairs]
    path = arguments.prompts / "indistribution.jsonl"
    prompts = f'[{{name = "indistribution", path = "{path}", limit = 64}}]'
    deadline = time.monotonic() + arguments.max_seconds
    run_all(jobs, [job.command(arguments.steps, arguments.answers, prompts) for job in jobs], arguments.jobs, deadline)
    found = [job.figures() for job in jobs if job.finished]
    on = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    document = {
        "command": " ".join(["python -m launch.smollm2.ablations", *sys.argv[1:]]),
        "machine": f"1 x {on}",
        "versions": versions(),
        "steps": arguments.steps,
        "table": summary(found),
        "runs": found,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    for row in document["table"]:
        print(f"{row['variant']:32} {row['acceptance']:.3f} ({row['seeds']} seeds) kl {row['kl']:.3f}")


if __name__ == "__main__":
    main()
