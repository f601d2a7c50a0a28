"""Judge the recipe's drafter in every way that its results name, each by one `tp-dflash evaluate` of its own.

Comes in: a run folder, the prompt files. Goes out: RUN/evaluations/NAME.json. What is there already is not done again, so
that GPU and CPU figures can come from two machines.

    python -m launch.smollm2.evaluations --run runs/smollm2
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

IN_DISTRIBUTION = "indistribution"
HELD_OUT = ("gsm8k", "humaneval", "mtbench")
MOST_PROMPTS = "200"
TREE_BUDGETS = (16, 32, 64)


@dataclass(frozen=True)
class Evaluation:
    """What is given to ``tp-dflash evaluate``. timed: prompts one by one, and nothing else at work beside it."""

    arguments: tuple[str, ...]
    sets: tuple[str, ...] = (IN_DISTRIBUTION,)
    exported: bool = False
    timed: bool = False


def _batched(*arguments: str, sets: tuple[str, ...] = (IN_DISTRIBUTION,), exported: bool = False) -> Evaluation:
    common = ("--limit", MOST_PROMPTS, "--max-new-tokens", "256", "--batch-size", "200")
    return Evaluation((*common, *arguments), sets, exported)


def _timed(*arguments: str, prompts: int = 6, tokens: int = 96) -> Evaluation:
    limits = ("--limit", str(prompts), "--max-new-tokens", str(tokens), "--batch-size", "1")
    return Evaluation((*limits, *arguments), timed=True)


ON_GPU = {
    "greedy-fp32": _batched(
        "--dtype", "float32", "--baseline-prompts", MOST_PROMPTS, sets=(IN_DISTRIBUTION, *HELD_OUT)
    ),
    "evaluated": _batched("--baseline-prompts", "0"),
    "exported": _batched("--baseline-prompts", "0", exported=True),
    "sampled": _batched("--temperature", "1", "--baseline-prompts", "0", sets=(IN_DISTRIBUTION, *HELD_OUT)),
    "speed-gpu-fp32": _timed("--dtype", "float32", "--baseline-prompts", "6"),
    "speed-gpu-bf16": _timed("--dtype", "bfloat16", "--baseline-prompts", "6"),
    **{
        f"tree-{budget}": _timed("--dtype", "float32", "--baseline-prompts", "0", "--tree-budget", str(budget))
        for budget in TREE_BUDGETS
    },
}
ON_CPU = {
    "speed-cpu-fp32": _timed("--dtype", "float32", "--baseline-prompts", "6"),
    "speed-cpu-bf16": _timed("--dtype", "bfloat16", "--baseline-prompts", "6"),
}


def command(evaluation: Evaluation, run: Path, prompts: Path, out: Path) -> list[str]:
    """The command line that writes ``out``."""
    subject = [str(run / "export"), "--dtype", "bfloat16"] if evaluation.exported else [str(run)]
    files = [part for name in evaluation.sets for part in ("--prompts", f"{name}={prompts / name}.jsonl")]
    return [
        sys.executable,
        "-m",
        "tp_dflash",
        "evaluate",
        *subject,
        *files,
        *evaluation.arguments,
        "--report",
        str(out),
    ]


def main() -> None:
    """Command line: run what is missing, untimed ones together, timed ones one by one."""
    import torch

    parser = argparse.ArgumentParser(description="Judge the recipe's drafter in every way that its results name.")
    parser.add_argument("--run", type=Path, default=Path("runs/smollm2"), help="folder of the run")
    parser.add_argument("--prompts", type=Path, default=Path("data/smollm2/prompts"), help="folder of prompts")
    parser.add_argument("--only", default=None, help="names, separated by commas; default: those for this machine")
    arguments = parser.parse_args()
    chosen = ON_GPU if torch.cuda.is_available() else ON_CPU
    names = list(chosen) if arguments.only is None else arguments.only.split(",")
    every = ON_GPU | ON_CPU
    folder = arguments.run / "evaluations"
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not (folder / f"{name}.json").is_file()]
    commands = {
        name: command(every[name], arguments.run, arguments.prompts, folder / f"{name}.json") for name in missing
    }
    _run({name: line for name, line in commands.items() if not every[name].timed}, folder)
    for name, line in commands.items():
        if every[name].timed:
            _run({name: line}, folder)


def _run(commands: dict[str, list[str]], folder: Path) -> None:
    """Together; their output goes to NAME.log. SystemExit names those that failed."""
    running = {}
    for name, line in commands.items():
        with (folder / f"{name}.log").open("wb") as log:
            running[name] = subprocess.Popen(line, stdout=log, stderr=log, env={**os.environ, "COLUMNS": "160"})
    failed = [name for name, process in running.items() if process.wait() != 0]
    for name in commands:
        print(f"{name}: {'failed' if name in failed else 'done'}", flush=True)
    if failed:
        sys.exit(f"evaluations failed: {', '.join(failed)}; see {folder}/NAME.log")


if __name__ == "__main__":
    main()
