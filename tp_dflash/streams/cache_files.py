"""Features of documents in files: how they lie there, which are complete, and how large they will be.

In: a folder. Out: for each document the file and the rows that hold its features. A file is complete or not there, a cache is
complete when its description is. Which model made the features is none of this room's business: it keeps and compares an
identity that it is given.

A file ``features-<rank>-<number>.safetensors`` holds features_TF and teacher_ED of its documents end to end (E: the positions
that can be anchors, which are also all that can be teacher rows), and embedding_VD with the embeddings of anchor tokens that
no earlier file of that rank had. Its metadata names documents, rows and tokens.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

DESCRIPTION_FILE = "cache.json"
_VERSION = "1"
_RESERVE = 1.02


@dataclass(frozen=True)
class DocumentRows:
    """Where one document's features lie. finite: False where the target gave a NaN or infinity (its rows are zero)."""

    file: Path
    token_start: int
    num_tokens: int
    teacher_start: int
    num_teacher_rows: int
    finite: bool


@dataclass(frozen=True)
class CacheIndex:
    """All complete files of a folder. tokens: file and row of the embedding of each anchor token."""

    documents: dict[int, DocumentRows]
    tokens: dict[int, tuple[Path, int]]

    @staticmethod
    def read(folder: Path) -> CacheIndex:
        """Read the files' metadata; half-written files have another name and are passed over."""
        documents: dict[int, DocumentRows] = {}
        tokens: dict[int, tuple[Path, int]] = {}
        for path in sorted(folder.glob("features-*.safetensors")):
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("about", "{}"))
            token_start = teacher_start = 0
            for document, num_tokens, num_teacher_rows, finite in about["documents"]:
                rows = DocumentRows(path, token_start, num_tokens, teacher_start, num_teacher_rows, bool(finite))
                documents[document] = rows
                token_start += num_tokens
                teacher_start += num_teacher_rows
            tokens.update((token, (path, row)) for row, token in enumerate(about["tokens"]))
        return CacheIndex(documents, tokens)


def write_file(
    folder: Path, name: str, tensors: dict[str, Tensor], documents: list[tuple[int, int, int, bool]], tokens: list[int]
) -> None:
    """Write one file, which gets its name when it is whole and on the disk."""
    about = json.dumps({"documents": documents, "tokens": tokens})
    partial = folder / f"{name}.partial"
    save_file(tensors, partial, metadata={"about": about})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(folder / f"{name}.safetensors")


def complete_cache(folder: Path, identity: dict[str, Any], num_documents: int) -> None:
    """Describe the cache, once every rank has finished; ValueError if a document is missing."""
    found = CacheIndex.read(folder).documents
    missing = [document for document in range(num_documents) if document not in found]
    if missing:
        raise ValueError(
            f"{folder}: expected features of {num_documents} documents, got {len(found)}; document {missing[0]} is missing: "
            "give the same command again"
        )
    text = json.dumps({"version": _VERSION, "num_documents": num_documents, "identity": identity}, indent=2)
    partial = folder / f"{DESCRIPTION_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(folder / DESCRIPTION_FILE)


def is_complete(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether the folder holds a complete cache; ValueError if it is one of other data or another target."""
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        return False
    about = json.loads(path.read_text(encoding="utf-8"))
    kept = {"version": about.get("version"), **about.get("identity", {})}
    wanted = {"version": _VERSION, **json.loads(json.dumps(identity))}
    for name in sorted(kept.keys() | wanted.keys()):
        if kept.get(name) != wanted.get(name):
            raise ValueError(
                f"{folder}: expected features with {name} {wanted.get(name)!r}, got {kept.get(name)!r}; write them anew in "
                "another folder with tp-dflash cache"
            )
    return True


def cache_bytes(
    num_tokens: int, num_supervised: int, num_embeddings: int, feature_size: int, hidden_size: int, dtype: torch.dtype
) -> int:
    """Most bytes of a cache: features of all tokens, teacher rows of all supervised ones, embeddings of their kinds."""
    rows = num_supervised + min(num_supervised, num_embeddings)
    return int((num_tokens * feature_size + rows * hidden_size) * dtype.itemsize)


def check_disk(folder: Path, needed: int) -> None:
    """ValueError if the disk has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed * _RESERVE:
        raise ValueError(
            f"expected {needed / 2**30:.1f} GiB of free disk in {folder}, got {free / 2**30:.1f}; choose another folder, fewer "
            "documents or fewer tapped layers"
        )
