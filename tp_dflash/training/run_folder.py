"""What a run leaves behind so that a person can repeat it: command, configuration, versions, commit.

In: a configuration and argv. Out: ``runs/NAME/`` with ``run.json``; figures, checkpoints and exports join it later.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tp_dflash import __version__

_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "einops", "pydantic")


@dataclass(frozen=True)
class RunFolder:
    """Names of everything in a run's folder."""

    path: Path

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

    def describe(self, argv: Sequence[str], settings: dict[str, Any], world: str) -> None:
        """Write ``run.json``: argv, the whole configuration, the world, versions and commit.

        What ranks of an earlier start last said goes: this one may have fewer, and nobody would tell them apart.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.ranks, ignore_errors=True)
        content = {"argv": list(argv), "world": world, "versions": versions(), "config": settings}
        (self.path / "run.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of Python, this package, its dependencies and CUDA, and the commit of a source checkout."""
    found = {"python": platform.python_version(), "tp_dflash": __version__}
    found |= {name: metadata.version(name) for name in _PACKAGES}
    found["cuda"] = torch.version.cuda or "none"
    found["commit"] = _commit()
    return found


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"
