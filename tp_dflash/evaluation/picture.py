"""An evaluation drawn: acceptance by block position, streaks, and where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tp_dflash.evaluation.report import EvaluationReport

_ENDINGS = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """ValueError, before any work is done, if a picture of this name cannot be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError(
            "expected the package matplotlib for a picture, got none; pip install tp_dflash[plot] or leave the picture out"
        ) from None
    if path.suffix not in _ENDINGS:
        raise ValueError(f"expected a picture that ends in {', '.join(_ENDINGS)}, got {path.name}; rename it")


def draw_report(report: EvaluationReport, path: Path) -> None:
    """Write a picture (.png, .svg or .pdf by the name's ending); folders above are made. ValueError: ``check_picture``."""
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(15, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    positions, streaks, times = figure.subplots(1, 3)
    _draw_positions(report, positions)
    _draw_streaks(report, streaks)
    _draw_times(report, times)
    figure.suptitle(f"{report.drafter} on {report.target}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_positions(report: EvaluationReport, axes: Any) -> None:
    for each in report.sets:
        places = range(1, len(each.acceptance_by_position) + 1)
        axes.plot(places, each.acceptance_by_position, marker="o", label=f"{each.name} ({each.acceptance_length:.2f})")
    axes.set(xlabel="drafted position", ylabel="share of blocks that accepted it", ylim=(0, 1.02))
    axes.set_title("acceptance by position (acceptance length)")
    axes.legend()


def _draw_streaks(report: EvaluationReport, axes: Any) -> None:
    width = 0.8 / len(report.sets)
    for index, each in enumerate(report.sets):
        places = [streak + index * width for streak in range(len(each.streak_histogram))]
        axes.bar(places, [count / max(1, each.num_blocks) for count in each.streak_histogram], width, label=each.name)
    axes.set(xlabel="accepted drafted tokens of a block", ylabel="share of blocks")
    axes.set_title("streaks")
    axes.legend()


def _draw_times(report: EvaluationReport, axes: Any) -> None:
    names = [each.name for each in report.sets]
    below = [0.0] * len(names)
    for phase in report.sets[0].phase_seconds:
        each_ms = [1000 * each.phase_seconds[phase] / max(1, each.num_tokens) for each in report.sets]
        axes.bar(names, each_ms, bottom=below, label=phase)
        below = [low + high for low, high in zip(below, each_ms, strict=True)]
    for place, each in enumerate(report.sets):
        if each.plain_tokens_per_second:
            axes.hlines(
                1000 / each.plain_tokens_per_second, place - 0.4, place + 0.4, colors="black", linestyles="dashed"
            )
    axes.set_ylabel("ms a token (dashed: without the drafter)")
    axes.set_title("time")
    axes.legend()
