"""The sweep as a picture: rates of both sides over nodes, and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tp_dflash.planner.sweep import SweepPoint


def draw_sweep(points: Sequence[SweepPoint], path: Path) -> None:
    """Write the picture (format by the file's ending); ValueError that names the extra if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("expected matplotlib for a picture, got none; install tp_dflash[plot]") from None
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    rates, balance = figure.subplots(1, 2)
    nodes = [point.num_nodes for point in points]
    sides = {
        "target pool alone": [point.time.target_only_tokens_per_second for point in points],
        "drafters alone": [point.time.drafter_packs_per_second * point.time.tokens_per_pack for point in points],
        "together": [point.time.tokens_per_second for point in points],
    }
    for (name, values), style in zip(sides.items(), ("--", ":", "-"), strict=True):
        rates.plot(nodes, [value / 1000 for value in values], style, marker="o", label=name)
    rates.set(xlabel="nodes", ylabel="thousand tokens a second", xscale="log", yscale="log", title="Throughput")
    busy = {
        "targets": [point.time.packs_per_second / point.time.pool_packs_per_second for point in points],
        "drafters": [point.time.packs_per_second / point.time.drafter_packs_per_second for point in points],
    }
    for name, shares in busy.items():
        balance.plot(nodes, [100 * share for share in shares], marker="o", label=name)
    balance.set(xlabel="nodes", ylabel="% of time at work", xscale="log", ylim=(0, 105), title="Balance")
    for axes in (rates, balance):
        axes.set_xticks(nodes, [str(count) for count in nodes])
        axes.minorticks_off()
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
