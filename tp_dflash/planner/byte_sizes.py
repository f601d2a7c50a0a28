"""Amounts of memory as people write and read them: ``95GiB`` in, ``94.8 GiB`` out."""

from __future__ import annotations

import re

GIB = 2**30

_UNITS = {
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": GIB,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def parse_bytes(text: str) -> int:
    """Bytes of ``"95GiB"`` or ``"80 GB"``; ValueError on anything else, a number without a unit, or nothing above 0."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2].upper() if match else ""
    if match is None or unit not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f"expected an amount of memory such as 95GiB or 80GB, got {text!r}; write a number and a unit")
    return round(float(match[1]) * _UNITS[unit])


def in_gib(num_bytes: float) -> str:
    """``51.3 GiB``; small amounts with one more digit."""
    gib = num_bytes / GIB
    return f"{gib:.2f} GiB" if gib < 10 else f"{gib:.1f} GiB"
