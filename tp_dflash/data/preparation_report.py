"""What became of every record: counts by reason, sizes, and the list of bad ones.

Filled while data is prepared, kept with the prepared data, printed by `tp-dflash prepare`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tp_dflash.data.bad_record import DropReason


@dataclass
class SplitCounts:
    """Documents of a split and their tokens; length_counts: documents by length class, class c is below 2^c tokens."""

    documents: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    length_counts: dict[int, int] = field(default_factory=dict)


@dataclass
class PreparationReport:
    """Counts over all sources. records = those that became documents + the sum of dropped.

    truncated: records cut at max_length (or split) that still are documents. dropped: by reason. bad_lines: name of the
    file in the prepared folder that lists every dropped record with file, line and reason.
    """

    records: int = 0
    used_records: int = 0
    truncated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    splits: dict[str, SplitCounts] = field(default_factory=dict)
    end_of_turn: str | None = None
    bad_lines: str = "bad_lines.jsonl"

    def drop(self, reason: DropReason) -> None:
        self.dropped[reason.value] = self.dropped.get(reason.value, 0) + 1

    def summary(self) -> str:
        """One line: how many records were used, and why the others were not."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.used_records} of {self.records} records used" + (f"; dropped: {reasons}" if reasons else "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> PreparationReport:
        splits = {name: SplitCounts(**_with_int_keys(counts)) for name, counts in value["splits"].items()}
        return PreparationReport(**{**value, "splits": splits})


def _with_int_keys(counts: dict[str, Any]) -> dict[str, Any]:
    return {**counts, "length_counts": {int(key): value for key, value in counts["length_counts"].items()}}
