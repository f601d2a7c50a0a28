"""What went wrong, or was survived, in the life of a run: one JSON line each, over all its starts.

In: facts found by the first drafter rank or told to it. Out: ``faults.jsonl`` in the run's folder, which the report reads.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tp_dflash.training.telling_files import append_line

Kind = Literal[
    "started",
    "resumed",
    "damaged checkpoint",
    "save failed",
    "step skipped",
    "documents dropped",
    "stopped",
    "finished",
]


@dataclass(frozen=True)
class Fault:
    """Something to tell. step: optimizer steps done then; details: numbers and names, ready for JSON."""

    kind: Kind
    step: int
    text: str
    details: dict[str, Any]
    written_at: float = 0.0


def append_fault(path: Path, kind: Kind, step: int, text: str, **details: Any) -> None:
    """Add a line; a full disk must not end the run that reports it."""
    append_line(path, json.dumps(asdict(Fault(kind, step, text, details, time.time()))))
