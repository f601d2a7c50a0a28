"""Times on the command line, and what is refused."""

from __future__ import annotations

import pytest

from tp_dflash.cli.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("45s", 45), ("30m", 1800), ("4h", 14400), ("1h30m", 5400), ("0.5d", 43200)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "4 hours", "-1h", "0", "1h30", "4x"])
def test_what_is_no_duration_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as"):
        parse_duration(text)
