"""Gather what a run of the recipe and its evaluations wrote: figures, a table, pictures.

Comes in: a run folder with `metrics.jsonl`, `report.json`, `evaluations/`; the ablations' JSON. Goes out, in --out:
`drafter.json`, `drafter.md` (the same as tables, with the ablations), and the pictures of the recipe and the README.

    python -m launch.smollm2.results --run runs/smollm2
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from launch.smollm2 import pictures
from launch.smollm2.evaluations import HELD_OUT, IN_DISTRIBUTION, ON_CPU, ON_GPU, TREE_BUDGETS

Report = dict[str, Any]


def read_reports(run: Path) -> dict[str, Report]:
    """The evaluations that are there, by name."""
    paths = {name: run / "evaluations" / f"{name}.json" for name in ON_GPU | ON_CPU}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def _set(report: Report, name: str) -> Report:
    return next(each for each in report["sets"] if each["name"] == name)


def _acceptance(report: Report | None, name: str) -> float | None:
    return None if report is None else _set(report, name)["acceptance_length"]


def _speedup(report: Report | None) -> float | None:
    return None if report is None else _set(report, IN_DISTRIBUTION)["speedup"]


def figures(run: Path, reports: dict[str, Report]) -> dict[str, float | None]:
    """The figures of the project, each read from a file of the run; None for what was not run."""
    exact = reports["greedy-fp32"]
    lengths = {name: _set(exact, name)["acceptance_length"] for name in (IN_DISTRIBUTION, *HELD_OUT)}
    return {
        "steps": json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"],
        "acceptance_in_distribution": lengths[IN_DISTRIBUTION],
        "acceptance_heldout": mean(lengths[name] for name in HELD_OUT),
        **{f"acceptance_{name}": lengths[name] for name in HELD_OUT},
        "identical_fp32": sum(each["identical"] for each in exact["sets"]),
        "compared_fp32": sum(each["compared_prompts"] for each in exact["sets"]),
        "acceptance_logged": _acceptance(_logged(run), IN_DISTRIBUTION),
        "acceptance_evaluated": _acceptance(reports.get("evaluated"), IN_DISTRIBUTION),
        "acceptance_exported": _acceptance(reports.get("exported"), IN_DISTRIBUTION),
        "decode_speedup": _speedup(reports.get("speed-gpu-fp32")),
        "decode_speedup_bf16": _speedup(reports.get("speed-gpu-bf16")),
        "decode_speedup_cpu_fp32": _speedup(reports.get("speed-cpu-fp32")),
        "decode_speedup_cpu_bf16": _speedup(reports.get("speed-cpu-bf16")),
    }


def _logged(run: Path) -> Report | None:
    """The evaluation at the end of the training, None for a run that was cut short."""
    if not (run / "report.json").is_file():
        return None
    evaluations = json.loads((run / "report.json").read_text())["evaluations"]
    return evaluations[max(evaluations, key=int)] if evaluations else None


def acceptance_table(reports: dict[str, Report]) -> str:
    """Markdown: acceptance by set, greedy and sampled, and what was compared with plain decoding."""
    lines = ["| prompts | number | greedy, fp32 | T = 1, bf16 | same as without the drafter |", "|---|---|---|---|---|"]
    for each in reports["greedy-fp32"]["sets"]:
        sampled = _set(reports["sampled"], each["name"])["acceptance_length"] if "sampled" in reports else None
        lines.append(
            f"| {each['name']} | {each['num_prompts']} | {each['acceptance_length']:.2f} | "
            f"{'' if sampled is None else f'{sampled:.2f}'} | {each['identical']} of {each['compared_prompts']} |"
        )
    return "\n".join(lines)


def speed_table(reports: dict[str, Report]) -> str:
    """Markdown: tokens a second with and without the drafter, prompts one by one, and trees by budget."""
    lines = ["| | acceptance | tokens/s | without | ratio |", "|---|---|---|---|---|"]
    names = [
        name for name in ("speed-gpu-fp32", "speed-gpu-bf16", "speed-cpu-fp32", "speed-cpu-bf16") if name in reports
    ]
    for name in names + [f"tree-{budget}" for budget in TREE_BUDGETS if f"tree-{budget}" in reports]:
        each = _set(reports[name], IN_DISTRIBUTION)
        plain, ratio = each["plain_tokens_per_second"], each["speedup"]
        lines.append(
            f"| {name} | {each['acceptance_length']:.2f} | {each['tokens_per_second']:.1f} | "
            f"{'' if plain is None else f'{plain:.1f}'} | {'' if ratio is None else f'{ratio:.2f}'} |"
        )
    return "\n".join(lines)


def ablation_table(ablations: Report) -> str:
    """Markdown: acceptance of each variant beside the base and its spread over seeds."""
    lines = ["| variant | seeds | acceptance | to base | spread | KL |", "|---|---|---|---|---|---|"]
    for row in ablations["table"]:
        spread = "" if row["spread"] is None else f"{row['spread']:.3f}"
        lines.append(
            f"| {row['variant']} | {row['seeds']} | {row['acceptance']:.3f} | {row['to_base']:+.3f} | {spread} | "
            f"{row['kl']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line: gather, write, draw."""
    parser = argparse.ArgumentParser(description="Gather what a run of the recipe and its evaluations wrote.")
    parser.add_argument("--run", type=Path, default=Path("runs/smollm2"), help="folder of the run")
    parser.add_argument("--machine", default="1 x NVIDIA H200; speed-cpu: 2 CPU cores", help="what it ran on")
    parser.add_argument("--note", default="", help="what a reader of the figures must know")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the results")
    arguments = parser.parse_args()
    reports = read_reports(arguments.run)
    identity = json.loads((arguments.run / "run.json").read_text())
    document = {
        "command": "; ".join(
            [
                f"python -m tp_dflash {shlex.join(identity['argv'][1:])}",
                f"python -m launch.smollm2.results {shlex.join(sys.argv[1:])}",
            ]
        ),
        "machine": arguments.machine,
        "versions": identity["versions"],
        **({"note": arguments.note} if arguments.note else {}),
        "figures": figures(arguments.run, reports),
        "reports": reports,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "drafter.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    parts = ["# The SmolLM2 drafter", "Written by `python -m launch.smollm2.results`."]
    parts += [arguments.note] if arguments.note else []
    parts += [acceptance_table(reports)]
    parts += ["Prompts one by one, unseen prompts of the training distribution:", speed_table(reports)]
    ablations = arguments.out / "ablations.json"
    if ablations.is_file():
        found = json.loads(ablations.read_text())
        parts += [f"Ablations, {found['steps']} steps each (`{found['command']}`):", ablation_table(found)]
    (arguments.out / "drafter.md").write_text("\n\n".join(parts) + "\n", "utf-8")
    metrics = [json.loads(line) for line in (arguments.run / "metrics.jsonl").read_text().splitlines()]
    pictures.draw_positions(reports["greedy-fp32"], arguments.out / "drafter-positions.png")
    pictures.draw_training([line for line in metrics if "loss" in line], arguments.out / "drafter-training.png")
    if any(f"tree-{budget}" in reports for budget in TREE_BUDGETS):
        pictures.draw_trees(reports, TREE_BUDGETS, arguments.out / "drafter-trees.png")
    pictures.draw_memory(Path("launch/configs/qwen3.6-27b-ddtree.toml"), arguments.out / "memory-anchors.png")
    print(json.dumps(document["figures"], indent=2))


if __name__ == "__main__":
    main()
