"""Checkpoint folders on disk: which are complete, which is the newest, which may go.

A folder ``step-00000500`` counts only once its ``manifest.json`` (sizes and checksums of every file) is in place, and it
gets its name by one rename after that. A cut save leaves a ``.partial`` folder, never a folder that resume trusts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tp_dflash.config.run_files import RunFiles

MANIFEST = "manifest.json"
STATE = RunFiles.STATE
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class CheckpointFolder:
    """A complete, checked checkpoint."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """What is not a tensor: step, counters, the run's identity."""
        return json.loads((self.path / STATE).read_text(encoding="utf-8"))


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def partial_path(root: Path, step: int) -> Path:
    """Where a save in progress writes."""
    return root / f".{folder_name(step)}.partial"


def clear_partial(root: Path, step: int) -> None:
    """Make the partial folder of ``step``, empty: what a cut save left would be taken for parts of the new one."""
    partial = partial_path(root, step)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)


def seal(root: Path, step: int, state: dict[str, Any]) -> CheckpointFolder:
    """Turn a partial folder into a checkpoint: state, then manifest, everything flushed, then the rename."""
    partial = partial_path(root, step)
    _write_json(partial / STATE, {"step": step, **state})
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(partial.iterdir())
        if path.name != MANIFEST
    }
    _write_json(partial / MANIFEST, {"step": step, "files": files})
    for path in partial.iterdir():
        _flush(path)
    _flush(partial)
    final = root / folder_name(step)
    if final.exists() and find_fault(final) is None:
        # The same step of the same run: there is nothing to gain, and at no moment is there no checkpoint of it.
        shutil.rmtree(partial)
        return CheckpointFolder(final, step)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _flush(root)
    return CheckpointFolder(final, step)


def newest_complete(root: Path) -> tuple[CheckpointFolder | None, list[str]]:
    """The newest checkpoint whose files are all there and unchanged, and a line for each damaged one passed over.

    ValueError where there are checkpoints and all are damaged: to start from step 0 unasked would throw a run away.
    """
    skipped: list[str] = []
    for path in _candidates(root):
        fault = find_fault(path)
        if fault is None:
            return CheckpointFolder(path, _step_of(path)), skipped
        skipped.append(f"{path}: {fault}; passed over")
    if any((path / STATE).exists() for path in _candidates(root)):
        raise ValueError(
            f"{root}: expected a complete checkpoint, but none of the checkpoints is complete: {' '.join(skipped)}. Bring one "
            "back, or move the folder away to start from step 0"
        )
    return None, skipped


def find_fault(path: Path, checksums: bool = True) -> str | None:
    """Why a folder is not a complete checkpoint, in words; None if it is one. checksums: read every file to the end."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name, (size, digest) in files.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, the manifest says {size}"
        if checksums and _sha256(file) != digest:
            return f"{name} does not have the manifest's checksum"
    return None if STATE in files else f"{STATE} is missing"


def remove_old(root: Path, keep_last: int, keep: frozenset[int] = frozenset(), newest: int | None = None) -> None:
    """Delete all but the newest ``keep_last`` checkpoints and those of the steps in ``keep``, and cut saves.

    Damaged folders do not count and stay, and neither do those of steps after ``newest``: a run that went on from an older
    checkpoint found them damaged, and they must not push out what it saves now.
    """
    counted = [
        path
        for path in _candidates(root)
        if (newest is None or _step_of(path) <= newest) and find_fault(path, checksums=False) is None
    ]
    for path in counted[keep_last:]:
        if _step_of(path) not in keep:
            shutil.rmtree(path)
    for path in root.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def _candidates(root: Path) -> list[Path]:
    """Folders with a checkpoint's name, newest first; anything else in the folder is not ours."""
    if not root.is_dir():
        return []
    named = [path for path in root.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(named, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match.group(1))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
