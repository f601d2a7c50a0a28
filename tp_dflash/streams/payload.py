"""Buffers in which a pack's features are written, sent and received.

In: the run's fixed shapes and the sizes of a layout. Out: views of the right sizes in buffers that are made once. What the
numbers mean is none of this room's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tp_dflash.blocks import BlockLayout, FeatureBatch, FixedShapes


@dataclass(frozen=True)
class PayloadShapes:
    """Most rows of any pack (T, A, U of ``fixed``), widths F and D, and the dtype in which features travel."""

    fixed: FixedShapes
    feature_size: int
    hidden_size: int
    dtype: torch.dtype


class Slot:
    """One buffer for the features of one pack, as large as the largest pack of the run."""

    def __init__(self, shapes: PayloadShapes, device: torch.device) -> None:
        fixed, options = shapes.fixed, {"dtype": shapes.dtype, "device": device}
        self.features_TF = torch.zeros(fixed.num_context, shapes.feature_size, **options)  # type: ignore[call-overload]
        self.teacher_hidden_UD = torch.zeros(fixed.num_teacher_rows, shapes.hidden_size, **options)  # type: ignore[call-overload]
        self.anchor_embeddings_AD = torch.zeros(fixed.num_blocks, shapes.hidden_size, **options)  # type: ignore[call-overload]
        self.finite_documents = torch.ones(fixed.num_context, dtype=torch.bool, device=device)
        self._written = 0

    def batch(self, layout: BlockLayout) -> FeatureBatch:
        """Views of the layout's sizes; ValueError if the pack is larger than the buffer."""
        return FeatureBatch(
            pack_id=layout.pack.pack_id,
            features_TF=_first(self.features_TF, layout.pack.num_tokens, "tokens", "data.token_budget"),
            teacher_hidden_UD=_first(
                self.teacher_hidden_UD,
                layout.num_teacher_rows,
                "teacher rows",
                "anchors.per_pack or drafter.block_size",
            ),
            anchor_embeddings_AD=_first(self.anchor_embeddings_AD, layout.num_blocks, "anchors", "anchors.per_pack"),
            finite_documents=_first(
                self.finite_documents, len(layout.pack.documents), "documents", "data.token_budget"
            ),
        )

    def filled(self, layout: BlockLayout) -> FeatureBatch:
        """The batch once its rows are written: an earlier pack's rows after them become zero, the buffer is its padding."""
        num_tokens = layout.pack.num_tokens
        if self._written > num_tokens:
            self.features_TF[num_tokens : self._written] = 0
        self._written = num_tokens
        return replace(self.batch(layout), padded_features_TF=self.features_TF)

    def whole(self, layout: BlockLayout) -> list[Tensor]:
        """The parts that the layout's payload has, at the buffer's full size."""
        whole = [self.features_TF, self.teacher_hidden_UD, self.anchor_embeddings_AD, self.finite_documents]
        return [part for part, real in zip(whole, _parts(self.batch(layout)), strict=True) if real.numel()]


def payload(batch: FeatureBatch) -> list[Tensor]:
    """The tensors that travel, in the order in which they travel; parts without rows do not."""
    return [part for part in _parts(batch) if part.numel()]


def _parts(batch: FeatureBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert batch.finite_documents is not None
    return batch.features_TF, batch.teacher_hidden_UD, batch.anchor_embeddings_AD, batch.finite_documents


def _first(rows: Tensor, count: int, what: str, setting: str) -> Tensor:
    if count > rows.shape[0]:
        raise ValueError(f"expected at most {rows.shape[0]} {what} in a pack, got {count}; raise {setting}")
    return rows[:count]
