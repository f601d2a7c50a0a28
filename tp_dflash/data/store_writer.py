"""Writes prepared documents into a folder that only gets its name when it is complete.

In: encoded chunks in order. Out: the files that TokenStore reads. Nothing of a chunk stays in memory but a few numbers a
document.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from tp_dflash.data.preparation_report import SplitCounts
from tp_dflash.data.store import COUNTS_FILE, MASK_FILE, TOKENS_FILE

TRAIN, VALIDATION = "train", "validation"
STORE_FILE = "store.json"
STORE_VERSION = 1


class StoreWriter:
    """Use as a context manager; ``finish`` gives the folder its name, leaving without it removes everything.

    validation_fraction: share of the training documents that ``finish`` moves to validation, by their content.
    """

    def __init__(self, folder: Path, dtype: np.dtype, num_token_ids: int, validation_fraction: float = 0.0) -> None:
        self.folder = folder
        self._partial = folder.with_name(f"{folder.name}.partial-{uuid.uuid4().hex[:8]}")
        self._dtype = dtype
        self._fraction = validation_fraction
        self._counts_V = np.zeros(num_token_ids, dtype=np.int64)
        # A few numbers a document, an array a chunk.
        self._length, self._file, self._line, self._supervised, self._is_validation, self._hash = (
            _Column(kind) for kind in (np.int64, np.int64, np.int64, np.int64, np.bool_, np.uint64)
        )

    def __enter__(self) -> StoreWriter:
        self._partial.mkdir(parents=True)
        self._tokens = (self._partial / TOKENS_FILE).open("wb")
        self._mask = (self._partial / MASK_FILE).open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tokens.close()
        self._mask.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def open_text(self, name: str) -> IO[str]:
        """A further file of the folder."""
        return (self._partial / name).open("w", encoding="utf-8")

    def append(
        self, split: str, file: int, lines: list[int], tokens: np.ndarray, loss_mask: np.ndarray, lengths: np.ndarray
    ) -> None:
        """Add documents of one file, laid end to end; ``lines``: the record each came from."""
        tokens = tokens.astype(self._dtype, copy=False)
        tokens.tofile(self._tokens)
        loss_mask.astype(bool, copy=False).tofile(self._mask)
        self._counts_V += np.bincount(tokens, minlength=len(self._counts_V))
        if not lines:
            return
        starts = np.cumsum(lengths) - lengths
        self._length.add(lengths)
        self._file.add(np.full(len(lines), file))
        self._line.add(np.array(lines))
        self._supervised.add(np.add.reduceat(loss_mask.astype(np.int64), starts))
        self._is_validation.add(np.full(len(lines), split == VALIDATION))
        if self._fraction:
            self._hash.add(_hashes(tokens, starts.tolist(), lengths.tolist()))

    def split_off(self) -> None:
        """Move the share of the training documents that validation is to get; equal documents stay together."""
        train_D = np.flatnonzero(~self._is_validation.values())
        wanted = min(len(train_D) - 1, max(1, round(self._fraction * len(train_D)))) if self._fraction else 0
        if wanted < 1:
            return
        hash_D = self._hash.values()[train_D]
        chosen_D = train_D[hash_D <= np.sort(hash_D)[wanted - 1]]
        if len(chosen_D) == len(train_D):
            raise ValueError(
                f"expected different training documents to split for validation, got {len(train_D)} equal ones; set "
                "data.validation_fraction to 0"
            )
        is_validation_D = self._is_validation.values().copy()
        is_validation_D[chosen_D] = True
        self._is_validation = _Column(np.bool_, [is_validation_D])

    def counts(self) -> dict[str, SplitCounts]:
        """Sizes of the splits so far."""
        return {split: self._counts(self._chosen(split)) for split in (TRAIN, VALIDATION)}

    def finish(self, files: list[str], weights: list[float], about: dict[str, Any]) -> None:
        """Write the indexes and ``about``, make all of it durable, and move the folder to its place."""
        length_D, file_D = self._length.values(), self._file.values()
        start_D = np.cumsum(length_D) - length_D
        weight_D = np.array(weights, dtype=np.float64)[file_D]
        for split in (TRAIN, VALIDATION):
            chosen_D = self._chosen(split)
            with (self._partial / f"{split}.npz").open("wb") as stream:
                np.savez(
                    stream,
                    start=start_D[chosen_D],
                    length=length_D[chosen_D],
                    weight=weight_D[chosen_D],
                    origin=file_D[chosen_D],
                    line=self._line.values()[chosen_D],
                )
        np.save(self._partial / COUNTS_FILE, self._counts_V)
        store = {"version": STORE_VERSION, "dtype": self._dtype.name, "files": files, **about}
        (self._partial / STORE_FILE).write_text(json.dumps(store, indent=2), encoding="utf-8")
        for stream in (self._tokens, self._mask):
            stream.flush()
            os.fsync(stream.fileno())
        self._move()

    def _move(self) -> None:
        """A folder cannot replace a full one in a single step: the old one steps aside first."""
        old = self.folder.with_name(f"{self.folder.name}.old-{uuid.uuid4().hex[:8]}")
        if self.folder.exists():
            self.folder.rename(old)
        self._partial.rename(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def _chosen(self, split: str) -> np.ndarray:
        return np.flatnonzero(self._is_validation.values() == (split == VALIDATION))

    def _counts(self, chosen_D: np.ndarray) -> SplitCounts:
        length_D = self._length.values()[chosen_D]
        classes, counts = np.unique([int(length).bit_length() for length in length_D], return_counts=True)
        return SplitCounts(
            documents=len(length_D),
            tokens=int(length_D.sum()),
            supervised_tokens=int(self._supervised.values()[chosen_D].sum()),
            longest=int(length_D.max(initial=0)),
            length_counts={int(c): int(n) for c, n in zip(classes, counts, strict=True)},
        )


class _Column:
    """Numbers that come in pieces."""

    def __init__(self, kind: type[np.generic], pieces: list[np.ndarray] | None = None) -> None:
        self._kind = kind
        self._pieces = pieces or []

    def add(self, piece: np.ndarray) -> None:
        self._pieces.append(piece.astype(self._kind, copy=False))

    def values(self) -> np.ndarray:
        """All of them, in order."""
        self._pieces = [np.concatenate([np.empty(0, self._kind), *self._pieces])]
        return self._pieces[0]


def _hashes(tokens: np.ndarray, starts: list[int], lengths: list[int]) -> np.ndarray:
    """64 bits that name each document's tokens, the same on every machine."""
    digests = (
        hashlib.blake2b(tokens[start : start + length].tobytes(), digest_size=8).digest()
        for start, length in zip(starts, lengths, strict=True)
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")
