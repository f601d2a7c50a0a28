"""The documents that one drafter rank trains on in one micro-step, laid end to end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tp_dflash.blocks.document import Document


@dataclass(frozen=True, eq=False)
class Pack:
    """Documents of one micro-step on one drafter rank. Without documents it is an empty pack: it only keeps step.

    pack_id: its number within the epoch, the same on every rank; epoch: counted from 0, part of the anchor key.
    T, the length of the concatenation, counts real tokens only: a pack holds no padding.
    """

    pack_id: int
    epoch: int
    documents: tuple[Document, ...]

    @property
    def num_tokens(self) -> int:
        return sum(document.num_tokens for document in self.documents)

    @cached_property
    def document_starts(self) -> tuple[int, ...]:
        """Index in the pack at which each document starts, and the pack's length as the last entry."""
        starts = [0]
        for document in self.documents:
            starts.append(starts[-1] + document.num_tokens)
        return tuple(starts)

    @cached_property
    def tokens_T(self) -> Tensor:
        parts = [document.tokens_S for document in self.documents]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    @cached_property
    def loss_mask_T(self) -> Tensor:
        parts = [document.loss_mask_S for document in self.documents]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.bool)

    @cached_property
    def document_index_T(self) -> Tensor:
        """For each token, which of ``documents`` it belongs to (int64)."""
        lengths = torch.tensor([document.num_tokens for document in self.documents], dtype=torch.int64)
        return torch.repeat_interleave(torch.arange(len(self.documents)), lengths)

    @cached_property
    def position_T(self) -> Tensor:
        """For each token, its position counted inside its document (int64): what rotary embeddings see."""
        starts = torch.tensor(self.document_starts[:-1], dtype=torch.int64)
        return torch.arange(self.num_tokens) - starts[self.document_index_T]
