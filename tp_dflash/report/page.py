"""The page itself: headings, charts and tables, in the order in which a person asks."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tp_dflash.report.chart import line_chart
from tp_dflash.report.run_record import RunRecord

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2329; max-width: 1020px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 1.6em 0 .3em }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1em 2em }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: #5b6770 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: .15em .9em .15em 0; text-align: left;
vertical-align: top } th { color: #5b6770; font-weight: 600 } .key { font-size: .85em; margin: 0 } .none { color: #5b6770 }
pre { background: #f4f6f8; padding: .8em; overflow-x: auto; font-size: .85em }
"""
_SURVIVED = ("resumed", "damaged checkpoint", "save failed", "step skipped", "documents dropped", "stopped")


def write_page(record: RunRecord, path: Path) -> None:
    """Write the page; folders above are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(record), encoding="utf-8")


def page_text(record: RunRecord) -> str:
    """The whole HTML document."""
    title = escape(f"tp_dflash run {record.name}")
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            _summary(record),
            _charts(record),
            _evaluations(record),
            _ranks(record),
            _events(record),
            _origin(record),
        ]
    )
    head = f"<meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    return f"<!DOCTYPE html>\n<html lang='en'><head>{head}</head><body>\n{body}\n</body></html>\n"


def _summary(record: RunRecord) -> str:
    last = record.steps[-1] if record.steps else {}
    pairs = [("world", record.settings.get("world")), ("last logged step", last.get("step"))]
    pairs += [(name, last.get(name)) for name in ("loss", "accuracy", "streak", "tokens_per_second")]
    pairs += [
        (name.replace("_", " "), record.results[name]) for name in record.results if name.startswith("acceptance_")
    ]
    counts = Counter(event.get("kind") for event in record.events)
    survived = ", ".join(f"{counts[kind]} x {kind}" for kind in _SURVIVED if counts[kind])
    pairs.append(("faults survived", survived or "none"))
    return _table([], [(name, _shown(value)) for name, value in pairs if value is not None])


def _charts(record: RunRecord) -> str:
    positions = {
        name.removesuffix("_by_position").replace("_", " "): record.by_position(name)
        for name in ("accuracy_by_position", "teacher_accuracy_by_position", "alpha_by_position")
    }
    ranks = {f"rank {rank}": points for rank, points in record.by_rank("peak_gib_by_rank").items()}
    waits = {f"rank {rank}": points for rank, points in record.by_rank("waited_by_rank").items()}
    streaks = {"streak": record.series("streak"), "expected streak": record.series("expected_streak")}
    charts = [
        ("Loss", line_chart({"loss": record.series("loss")}, "step")),
        ("Acceptance by block position, last logged step", line_chart(positions, "block position")),
        ("Accepted drafted tokens of a block", line_chart(streaks, "step")),
        ("Throughput, tokens a second", line_chart({"tokens a second": record.series("tokens_per_second")}, "step")),
        ("Waited for other ranks so far, seconds", line_chart(waits, "step")),
        ("Peak memory by rank, GiB", line_chart(ranks, "step")),
        ("Learning rate", line_chart({"rate": record.series("learning_rate")}, "step")),
        ("Gradient norm before clipping", line_chart({"norm": record.series("grad_norm")}, "step")),
    ]
    parts = [f"<div><h2>{escape(title)}</h2>{chart}</div>" for title, chart in charts]
    return f"<div class='charts'>{''.join(parts)}</div>"


def _evaluations(record: RunRecord) -> str:
    if not record.evaluations:
        return ""
    names = sorted({key for line in record.evaluations for key in line if str(key).startswith("evaluation/")})
    rows = [[line["step"], *(_shown(line.get(name)) for name in names)] for line in record.evaluations]
    return "<h2>Evaluations</h2>" + _table(["step", *(name.removeprefix("evaluation/") for name in names)], rows)


def _ranks(record: RunRecord) -> str:
    keys = ("rank", "role", "gpu", "step", "peak_bytes", "waited_seconds")
    rows = [[_shown(rank.get(key)) for key in keys] for rank in record.ranks]
    return "<h2>Ranks, last words</h2>" + _table([key.replace("_", " ") for key in keys], rows)


def _events(record: RunRecord) -> str:
    rows = [
        [_moment(event.get("written_at")), event.get("step"), event.get("kind"), event.get("text")]
        for event in record.events
    ]
    return "<h2>What happened</h2>" + _table(["when", "after step", "what", ""], rows)


def _origin(record: RunRecord) -> str:
    parts = [f"<h2>{title}</h2><pre>{escape(_json(record.settings.get(key)))}</pre>" for key, title in _ORIGIN.items()]
    return "".join(parts)


_ORIGIN = {"argv": "Command", "versions": "Versions", "config": "Configuration"}


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    cells = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table>{top}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _moment(seconds: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if isinstance(seconds, (int, float)) else ""


def _json(content: Any) -> str:
    return " ".join(map(str, content)) if isinstance(content, list) else json.dumps(content, indent=1)
