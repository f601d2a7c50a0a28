"""Documents that no one wrote, for measuring: tokens drawn from their number, a prompt in front that is not supervised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tp_dflash.blocks import Document
from tp_dflash.data import TokenStore


class MadeUpDocuments(TokenStore):
    """A store without files. ``lengths``: tokens of each document; ``vocab_size``: ids are drawn below it, never
    ``unused_id`` (the mask token)."""

    def __init__(self, lengths: np.ndarray, vocab_size: int, unused_id: int) -> None:
        count = len(lengths)
        super().__init__(
            folder=Path("made-up"),
            split="train",
            token_dtype="int64",
            start_D=np.cumsum(lengths) - lengths,
            length_D=lengths,
            weight_D=np.ones(count),
            file_D=np.zeros(count, dtype=np.int64),
            line_D=np.arange(1, count + 1),
            files=("made-up",),
        )
        object.__setattr__(self, "_vocab_size", vocab_size)
        object.__setattr__(self, "_unused_id", unused_id)

    def document(self, document_id: int) -> Document:
        """The first eighth is the prompt; the same tokens on every rank."""
        length = int(self.length_D[document_id % self.num_documents])
        generator = np.random.Generator(np.random.Philox(key=document_id))
        tokens = generator.integers(0, self._vocab_size - 1, size=length)  # type: ignore[attr-defined]
        tokens[tokens >= self._unused_id] += 1  # type: ignore[attr-defined]
        mask_S = torch.arange(length) >= length // 8
        return Document(document_id, torch.from_numpy(tokens), mask_S)

    def token_count(self, token_id: int) -> int:
        """Nobody counts: 0 for the mask token, which is never drawn."""
        return 0 if token_id == self._unused_id else 1  # type: ignore[attr-defined]


def full_packs(num_packs: int, token_budget: int, document_tokens: int) -> np.ndarray:
    """Lengths of documents that fill ``num_packs`` packs to the last token, all but the last of a pack alike."""
    whole, rest = divmod(token_budget, document_tokens)
    lengths = [document_tokens] * whole + ([rest] if rest >= 2 else [])
    return np.array(lengths * num_packs, dtype=np.int64)


def uneven_packs(num_packs: int, token_budget: int, document_tokens: int) -> np.ndarray:
    """Lengths between 3/4 of ``document_tokens`` and all of it, as packs of real text have them, for at least ``num_packs``."""
    generator = np.random.Generator(np.random.Philox(key=7))
    shortest = max(2, 3 * document_tokens // 4)
    needed = -(-(num_packs + 1) * token_budget // shortest)
    return generator.integers(shortest, document_tokens + 1, size=needed)
