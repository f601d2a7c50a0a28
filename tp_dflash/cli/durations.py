"""Times as people write them: ``90``, ``45s``, ``30m``, ``4h``, ``2d``, ``1h30m``, to seconds."""

from __future__ import annotations

import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORM = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+|\d+(?:\.\d+)?")


def parse_duration(text: str) -> float:
    """Seconds, > 0; a bare number counts seconds. ValueError on anything else."""
    found = 0.0
    if _FORM.fullmatch(text.strip()):
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text)
        found = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if found <= 0:
        raise ValueError(f'expected a time such as "4h", "90m" or "1h30m", got {text!r}; give number and unit')
    return found
