"""Who did what when, and who waited for whom, as a picture: one bar a rank, drawn from a run's own spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tp_dflash.bench.step_run import RankReading

_COLOURS = {
    "target forward": "#4477aa",
    "wait for a free buffer": "#dddddd",
    "wait for features": "#eeeeee",
    "assemble": "#bbbb44",
    "forward": "#66ccee",
    "head": "#cc4455",
    "backward": "#228833",
    "update": "#aa3377",
}


def draw_timeline(readings: Sequence[RankReading], first_step: int, title: str, path: Path) -> None:
    """Write the picture of the steps from ``first_step`` on; ValueError that names the extra if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ValueError("expected matplotlib for a picture, got none; install tp_dflash[plot]") from None
    first = next(reading for reading in readings if reading.step_tokens)
    begin, end = first.step_ends()[first_step - 1], first.step_ends()[-1]
    figure = Figure(figsize=(11, 1.4 + 0.7 * len(readings)), layout="constrained")
    axes = figure.subplots()
    seen = []
    for row, reading in enumerate(readings):
        for phase, colour in _COLOURS.items():
            bars = [
                (span.start - begin, span.seconds)
                for span in reading.spans
                if span.phase == phase and span.stop > begin and span.start < end
            ]
            if bars:
                axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, edgecolors="none")
                seen.append(phase)
    for stop in first.step_ends()[first_step:]:
        axes.axvline(stop - begin, color="black", linewidth=0.5, linestyle=":")
    axes.set_yticks(range(len(readings)), [f"rank {reading.rank}\n{reading.role}" for reading in readings])
    axes.invert_yaxis()
    axes.set(xlabel="seconds", xlim=(0, end - begin), title=title)
    handles = [Patch(color=colour, label=phase) for phase, colour in _COLOURS.items() if phase in seen]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(handles), fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
