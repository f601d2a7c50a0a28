"""Prepared documents on disk: token ids and loss masks end to end in memory-mapped files, and an index into them.

In: a folder that StoreWriter completed. Out: Documents by number, and the lengths that a plan is made of. Nothing is
written here; any number of processes may read the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from tp_dflash.blocks import Document

TOKENS_FILE, MASK_FILE, COUNTS_FILE = "tokens.bin", "loss_mask.bin", "token_counts.npy"


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The documents of one split. Document d is tokens start_D[d] .. start_D[d] + length_D[d] of the shared files.

    length_D: tokens of each document, int64: what a BatchPlan is made of. weight_D: uses of each per epoch, by its source,
    float64. line_D: line (or record) it was read from, counted from 1, and file_D: index into ``files``.
    """

    folder: Path
    split: str
    token_dtype: str
    start_D: np.ndarray
    length_D: np.ndarray
    weight_D: np.ndarray
    file_D: np.ndarray
    line_D: np.ndarray
    files: tuple[str, ...]

    @property
    def num_documents(self) -> int:
        return len(self.length_D)

    def __len__(self) -> int:
        return self.num_documents

    @property
    def num_tokens(self) -> int:
        return int(self.length_D.sum())

    def document(self, document_id: int) -> Document:
        """One document. Ids from ``num_documents`` on are further uses of the same documents (see BatchPlan)."""
        if document_id < 0:
            raise ValueError(f"expected a document id of at least 0, got {document_id}; take ids from the plan")
        index = document_id % self.num_documents
        start = self.start_D[index]
        stop = start + self.length_D[index]
        return Document(
            document_id=document_id,
            tokens_S=torch.from_numpy(self._tokens[start:stop].astype(np.int64)),
            loss_mask_S=torch.from_numpy(self._loss_mask[start:stop].astype(bool)),
        )

    def origin(self, document_id: int) -> tuple[str, int]:
        """File and line that a document was read from."""
        index = document_id % self.num_documents
        return self.files[self.file_D[index]], int(self.line_D[index])

    def token_count(self, token_id: int) -> int:
        """How often a token occurs in all prepared documents, validation included; 0 for ids never seen."""
        counts_V = self._token_counts
        return int(counts_V[token_id]) if 0 <= token_id < len(counts_V) else 0

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """``token_count`` of every id below ``vocab_size``, (V,) int64."""
        counts_V = np.zeros(vocab_size, dtype=np.int64)
        seen = self._token_counts[:vocab_size]
        counts_V[: len(seen)] = seen
        return counts_V

    @cached_property
    def _tokens(self) -> np.ndarray:
        return np.memmap(self.folder / TOKENS_FILE, dtype=self.token_dtype, mode="r")

    @cached_property
    def _loss_mask(self) -> np.ndarray:
        return np.memmap(self.folder / MASK_FILE, dtype=np.bool_, mode="r")

    @cached_property
    def _token_counts(self) -> np.ndarray:
        return np.load(self.folder / COUNTS_FILE)

    @staticmethod
    def open(folder: Path, split: str, token_dtype: str, files: tuple[str, ...]) -> TokenStore:
        """Map one split of a prepared folder into memory."""
        with np.load(folder / f"{split}.npz") as index:
            return TokenStore(
                folder=folder,
                split=split,
                token_dtype=token_dtype,
                start_D=index["start"],
                length_D=index["length"],
                weight_D=index["weight"],
                file_D=index["origin"],
                line_D=index["line"],
                files=files,
            )
