"""Collects what ``launch/scaling.sh`` ran: JSON, a table and a picture of rates beside the ideal and the plan's prediction."""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from tp_dflash.config.load import load_config
from tp_dflash.config.run import RunConfig
from tp_dflash.placement import Placement
from tp_dflash.planner import Calibration, read_calibration, sweep_nodes
from tp_dflash.planner.run_sizes import RunSizes

# Steps in which caches fill and processes wake up.
_WARM_UP = 3


@dataclass(frozen=True)
class ScalingPoint:
    """Measured and predicted, for one number of nodes. waited: share of the time, by role. Bytes a step, out of each node."""

    nodes: int
    ranks: int
    tokens_per_second: float
    efficiency: float
    predicted_tokens_per_second: float
    predicted_efficiency: float
    waited: dict[str, float]
    bytes_between_nodes: int


def collect(config: RunConfig, out: Path, counts: list[int], calibration: Calibration) -> list[ScalingPoint]:
    """One point a run folder ``out/nodes-N``; efficiency is per node, against the smallest number of nodes."""
    predicted = {point.num_nodes: point.time.tokens_per_second for point in sweep_nodes(config, counts, calibration)}
    measured = {count: _rate(out / f"nodes-{count}") for count in counts}
    first = counts[0]
    points = []
    for count in counts:
        sizes = RunSizes.of(config, _placement(config, count))
        points.append(
            ScalingPoint(
                nodes=count,
                ranks=len(sizes.placement.places),
                tokens_per_second=measured[count],
                efficiency=measured[count] / count / (measured[first] / first),
                predicted_tokens_per_second=predicted[count],
                predicted_efficiency=predicted[count] / count / (predicted[first] / first),
                waited=_waited(out / f"nodes-{count}"),
                bytes_between_nodes=_bytes_between_nodes(sizes),
            )
        )
    return points


def table(points: list[ScalingPoint]) -> str:
    """Markdown."""
    roles = sorted({role for point in points for role in point.waited})
    head = [
        "nodes",
        "ranks",
        "tokens/s",
        "efficiency",
        "plan's efficiency",
        *(f"{role} waits" for role in roles),
        "MB out of a node a step",
    ]
    rows = [
        [
            str(point.nodes),
            str(point.ranks),
            f"{point.tokens_per_second:,.0f}",
            f"{point.efficiency:.0%}",
            f"{point.predicted_efficiency:.0%}",
            *(f"{point.waited.get(role, 0.0):.0%}" for role in roles),
            f"{point.bytes_between_nodes / 1e6:,.2f}",
        ]
        for point in points
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def draw(points: list[ScalingPoint], path: Path) -> None:
    """Tokens a second over nodes, with the ideal and the prediction scaled to the first measured point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    nodes, first = [point.nodes for point in points], points[0]
    axes.plot(nodes, [point.tokens_per_second for point in points], marker="o", label="measured")
    axes.plot(nodes, [first.tokens_per_second * count / first.nodes for count in nodes], "--", label="ideal")
    scaled = [first.tokens_per_second * point.predicted_efficiency * point.nodes / first.nodes for point in points]
    axes.plot(nodes, scaled, ":", marker="x", label="the plan's efficiency")
    axes.set(xlabel="nodes", ylabel="tokens a second", xticks=nodes, ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=120)


def _placement(config: RunConfig, nodes: int) -> Placement:
    per_node = len(RunSizes.gpus(config))
    return Placement.resolve(config.placement, per_node * nodes, per_node)


def _rate(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    if len(rates) <= _WARM_UP:
        raise ValueError(f"{run}: expected more than {_WARM_UP} logged steps, got {len(rates)}; raise --steps")
    return statistics.median(rates[_WARM_UP:])


def _waited(run: Path) -> dict[str, float]:
    """Mean over a role's ranks of the time waited for others, over the time of all steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = sum(line["step_seconds"] for line in lines if "step_seconds" in line)
    found: dict[str, list[float]] = {}
    for path in (run / "ranks").glob("rank-*.json"):
        beat = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(beat["role"], []).append(beat["waited_seconds"] / max(seconds, 1e-9))
    return {role: min(1.0, statistics.mean(shares)) for role, shares in found.items()}


def _bytes_between_nodes(sizes: RunSizes) -> int:
    """What rings over all drafter ranks carry out of each node in a step: parameters twice in the compute dtype, gradients once.

    Features stay inside a node.
    """
    placement, training = sizes.placement, sizes.config.training
    if placement.num_nodes == 1:
        return 0
    drafters = len(placement.drafters)
    width = 2 if training.compute_dtype == "bfloat16" else 4
    once = sizes.shape.num_parameters * (2 * width + 4) * (drafters - 1) // drafters
    return once * training.accumulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", required=True, help="1,2,4")
    parser.add_argument("--calibration", type=Path, help="file of tp-dflash bench step")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    calibration = read_calibration(arguments.calibration) if arguments.calibration else Calibration()
    counts = sorted({int(count) for count in arguments.nodes.split(",")})
    points = collect(load_config(arguments.config, arguments.overrides), arguments.out, counts, calibration)
    (arguments.out / "scaling.json").write_text(
        json.dumps([asdict(point) for point in points], indent=2) + "\n", encoding="utf-8"
    )
    (arguments.out / "scaling.md").write_text(table(points), encoding="utf-8")
    draw(points, arguments.out / "scaling.png")
    print(table(points), end="")
    print(f"figures, table and picture in {arguments.out}")


if __name__ == "__main__":
    main()
