"""A rank's own log: what happened to it, with the time, in a file of its own in the run's folder."""

from __future__ import annotations

import time
from pathlib import Path

from tp_dflash.training.telling_files import append_line


class RankLog:
    """Appends lines; opens the file for each, so that nothing is lost when the process ends at once."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.label = label

    def say(self, text: str) -> bool:
        """One entry. A folder that cannot be written is no reason to end a run; False there."""
        return append_line(self.path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} [{self.label}] {text}") is None

    def warn(self, text: str) -> None:
        """An entry that is also shown."""
        print(f"[{self.label}] {text}", flush=True)
        self.say(text)
