"""A small file a rank, rewritten now and then: what the rank does, how far it is, how much memory it took.

Ranks of different roles run at different points of time; a file tells the others without making anyone wait.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tp_dflash.training.telling_files import replace_text


@dataclass(frozen=True)
class Heartbeat:
    """State of one rank. step: optimizer steps done (target ranks: steps whose packs are sent). Times in seconds."""

    rank: int
    role: str
    gpu: int
    step: int
    peak_bytes: int
    waited_seconds: float
    written_at: float = 0.0

    def write(self, folder: Path) -> None:
        """Replace this rank's file; a full disk leaves the one before."""
        replace_text(folder / f"rank-{self.rank}.json", json.dumps(asdict(self) | {"written_at": time.time()}))


def read_heartbeats(folder: Path) -> list[Heartbeat]:
    """The last word of every rank that has written one, by rank."""
    beats = [Heartbeat(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("rank-*.json")]
    return sorted(beats, key=lambda beat: beat.rank)
