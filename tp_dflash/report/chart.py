"""Line charts as SVG text, small enough to stand inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 34
_COLOURS = ("#2563a8", "#c2571a", "#3a8a4d", "#8a4fa3", "#b03a48", "#5b6770", "#a5872b", "#2f8f93")
_NUM_TICKS = 5


def line_chart(series: Mapping[str, Points], x_label: str) -> str:
    """An ``<svg>`` with one line a name; a sentence where there is nothing to draw."""
    lines = {name: list(points) for name, points in series.items() if points}
    if not lines:
        return "<p class='none'>nothing was logged</p>"
    everything = [point for points in lines.values() for point in points]
    x_range = _range([x for x, _ in everything])
    y_range = _range([y for _, y in everything])
    parts = [f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>", *_axes(x_range, y_range, x_label)]
    for index, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{_x(x, x_range):.1f},{_y(y, y_range):.1f}" for x, y in points)
        title = f"<title>{escape(name)}</title>"
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.6'>{title}</polyline>")
        if len(points) == 1:
            x, y = points[0]
            parts.append(f"<circle cx='{_x(x, x_range):.1f}' cy='{_y(y, y_range):.1f}' r='3' fill='{colour}'/>")
    parts.append("</svg>")
    if len(lines) > 1:
        keys = (
            f"<span style='color:{_COLOURS[index % len(_COLOURS)]}'>&#9644; {escape(name)}</span>"
            for index, name in enumerate(lines)
        )
        parts.append(f"<p class='key'>{' '.join(keys)}</p>")
    return "".join(parts)


def _axes(x_range: tuple[float, float], y_range: tuple[float, float], x_label: str) -> list[str]:
    parts = []
    for tick in range(_NUM_TICKS):
        share = tick / (_NUM_TICKS - 1)
        value = y_range[0] + share * (y_range[1] - y_range[0])
        height = _y(value, y_range)
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{height:.1f}' y2='{height:.1f}' stroke='#dde1e5'/>"
        )
        parts.append(f"<text x='{_LEFT - 6}' y='{height + 4:.1f}' text-anchor='end'>{_number(value)}</text>")
        value = x_range[0] + share * (x_range[1] - x_range[0])
        place = _x(value, x_range)
        parts.append(f"<text x='{place:.1f}' y='{_HEIGHT - _BOTTOM + 16}' text-anchor='middle'>{_number(value)}</text>")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f"<text x='{middle:.0f}' y='{_HEIGHT - 4}' text-anchor='middle'>{escape(x_label)}</text>")
    return parts


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x(value: float, limits: tuple[float, float]) -> float:
    return _LEFT + (value - limits[0]) / (limits[1] - limits[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, limits: tuple[float, float]) -> float:
    return _HEIGHT - _BOTTOM - (value - limits[0]) / (limits[1] - limits[0]) * (_HEIGHT - _TOP - _BOTTOM)


def _number(value: float) -> str:
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
