"""One line of a check: what was compared, the figure, and what to change if it is wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """subject: what was compared. figure: what was found. remedy: what to change; None when all is well."""

    subject: str
    figure: str
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        return self.remedy is None

    @property
    def line(self) -> str:
        return (
            f"ok     {self.subject}: {self.figure}"
            if self.ok
            else f"WRONG  {self.subject}: {self.figure} -> {self.remedy}"
        )


def compared(subject: str, got: object, expected: object, whose: str, remedy: str) -> Finding:
    """ok if the two are equal; the figure says both otherwise. whose: where the expected value comes from."""
    if got == expected:
        return Finding(subject, f"{got}, {whose}")
    return Finding(subject, f"{got}, but {expected} {whose}", remedy)
