"""The smallest unit of training text: one tokenised conversation or plain text with its loss mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Document:
    """One tokenised conversation or text.

    document_id: its number in the prepared data set; it keys the random draw of anchors, so it must not depend on rank,
        epoch or the pack the document fell into.
    tokens_S: token ids, int64.
    loss_mask_S: bool, True where the token may be trained on (is supervised).
    """

    document_id: int
    tokens_S: Tensor
    loss_mask_S: Tensor

    def __post_init__(self) -> None:
        if self.tokens_S.ndim != 1 or self.tokens_S.shape != self.loss_mask_S.shape:
            raise ValueError(
                f"document {self.document_id}: expected tokens and loss mask of one shape (S,), got "
                f"{tuple(self.tokens_S.shape)} and {tuple(self.loss_mask_S.shape)}; prepare the data set again"
            )
        if self.tokens_S.dtype != torch.int64 or self.loss_mask_S.dtype != torch.bool:
            raise ValueError(
                f"document {self.document_id}: expected int64 tokens and a bool loss mask, got "
                f"{self.tokens_S.dtype} and {self.loss_mask_S.dtype}; convert them where the file is read"
            )

    @property
    def num_tokens(self) -> int:
        return self.tokens_S.shape[0]
