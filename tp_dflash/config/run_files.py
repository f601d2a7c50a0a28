"""Names of everything in a run's folder, for those who write there and those who read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class RunFiles:
    """Paths below ``path``, the run's folder; nothing is opened."""

    path: Path

    # In each checkpoint: what is not a tensor.
    STATE: ClassVar[str] = "state.json"

    @property
    def settings(self) -> Path:
        """Command, configuration, world and versions of the latest start; every run's folder has it."""
        return self.path / "run.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def ranks(self) -> Path:
        return self.path / "ranks"

    @property
    def faults(self) -> Path:
        return self.path / "faults.jsonl"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat.json"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    def log_of(self, rank: int) -> Path:
        """Where a rank writes what happens to it."""
        return self.path / "logs" / f"rank-{rank}.log"
