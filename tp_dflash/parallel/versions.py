"""What this process runs on, for records that are to be repeated: versions, CUDA, the commit of a source checkout."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

from tp_dflash import __version__

_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "einops", "pydantic")


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Of Python, this package, CUDA, and ``packages`` as far as they are installed; and the commit."""
    found = {"python": platform.python_version(), "tp_dflash": __version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"cuda": torch.version.cuda or "none", "commit": _commit()}


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a checkout"
