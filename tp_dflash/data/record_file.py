"""Which files a list of sources stands for, and what kind each is.

In: sources of the configuration. Out: RecordFiles in a fixed order (sources as listed, files of a source by name), with a
digest of their content. Nothing is parsed here.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tp_dflash.config.data import SourceConfig

FileKind = Literal["jsonl", "json", "parquet", "arrow", "dataset", "hub"]

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_KINDS: dict[str, FileKind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow",
}  # fmt: skip
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "state.json")
_WHOLE_DIGEST_BYTES = 64 << 20
_PART_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordFile:
    """One file (or data set) to read. weight: uses of its documents per epoch. split, subset: of data sets only."""

    path: str
    kind: FileKind
    weight: float
    split: str = "train"
    subset: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size on disk; 0 for what is not one file."""
        path = Path(self.path)
        return path.stat().st_size if path.is_file() else 0

    def digest(self) -> str:
        """Names the content: of files up to 64 MiB all of it, of larger ones size, time and both ends."""
        path = Path(self.path)
        if self.kind == "hub":
            return f"{self.path}:{self.subset}:{self.split}"
        if path.is_dir():
            listing = [f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in _files_below(path)]
            return hashlib.sha256("\n".join([self.split, *listing]).encode()).hexdigest()
        stat = path.stat()
        digest = hashlib.sha256(str(stat.st_size).encode())
        with path.open("rb") as file:
            if stat.st_size <= _WHOLE_DIGEST_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(_PART_BYTES))
                file.seek(-_PART_BYTES, 2)
                digest.update(file.read() + str(stat.st_mtime_ns).encode())
        return digest.hexdigest()


def list_record_files(sources: Sequence[SourceConfig]) -> list[RecordFile]:
    """Expand globs and folders; a source that stands for no file is an error that names it."""
    return [file for source in sources for file in _expand(source)]


def _expand(source: SourceConfig) -> list[RecordFile]:
    path = Path(source.path).expanduser()
    if path.is_dir() and any((path / name).is_file() for name in _DATASET_FILES):
        return [RecordFile(str(path), "dataset", source.weight, source.split, source.subset)]
    if path.is_dir():
        found = [file for file in _files_below(path) if _kind(file) is not None]
    elif path.exists():
        found = [path]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
    if found:
        return [_record_file(file, source) for file in found]
    looks_like_file = path.is_dir() or _kind(path) is not None or glob.has_magic(source.path)
    if not looks_like_file and _HUB_NAME.fullmatch(source.path):
        return [RecordFile(source.path, "hub", source.weight, source.split, source.subset)]
    raise ValueError(
        f"expected a file, a folder with records, or a glob that matches, got {source.path!r}; {_advice()}"
    )


def _record_file(path: Path, source: SourceConfig) -> RecordFile:
    kind = _kind(path)
    if kind is None:
        raise ValueError(f"expected a file whose name tells its kind, got {path}; {_advice()}")
    return RecordFile(str(path), kind, source.weight)


def _kind(path: Path) -> FileKind | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
        return _KINDS.get(suffixes[-1]) if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json") else None
    return _KINDS.get(suffixes[-1]) if suffixes else None


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _advice() -> str:
    return (
        "files end in .jsonl, .json (either with .gz, .bz2, .xz, .zst), .parquet or .arrow; correct data.train or "
        "data.validation"
    )
