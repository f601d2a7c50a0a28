"""Disks as users meet them: one that is full, one that cannot be written. Real mounts, for which a test must be root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Whether this process may mount a file system; asked by doing it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[None]:
    """``folder`` is a disk of its own of that size, and empty again afterwards."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """``folder`` with what is in it can only be read, by root as well."""
    _run("mount", "--bind", str(folder), str(folder))
    try:
        _run("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def fill(path: Path) -> None:
    """Write until the disk of ``path`` takes not a byte more."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                if file.write(bytes(size)) < size:
                    size //= 2
            except OSError:
                size //= 2


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
