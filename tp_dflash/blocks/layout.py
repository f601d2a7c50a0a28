"""Everything about a pack's blocks that follows from its tokens and masks: anchors, labels, validity, teacher rows.

In: a pack, caps, a seed. Out: one BlockLayout on the CPU. The target side and the drafter side each compute it for
themselves and get the same, so neither asks the other what travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tp_dflash.blocks.anchors import AnchorCaps, sample_anchors
from tp_dflash.blocks.pack import Pack

LabelMode = Literal["same_position", "next_token"]


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Blocks of one pack; A here counts real anchors (padding comes with the batch), N = A x B.

    anchor_A: index of each anchor in the pack, ascending. anchor_document_A, anchor_position_A: its document (index in
    the pack) and position inside it. labels_N: token ids (0 on invalid rows). valid_N: rows that are trained.
    teacher_row_U: ascending unique pack indices whose target hidden state is a teacher row; teacher_index_N: for each
    row its place in teacher_row_U (0 on invalid rows).
    """

    pack: Pack
    block_size: int
    label_mode: LabelMode
    anchor_A: Tensor
    anchor_document_A: Tensor
    anchor_position_A: Tensor
    labels_N: Tensor
    valid_N: Tensor
    teacher_row_U: Tensor
    teacher_index_N: Tensor

    @property
    def num_blocks(self) -> int:
        return self.anchor_A.shape[0]

    @property
    def num_teacher_rows(self) -> int:
        return self.teacher_row_U.shape[0]

    @property
    def num_valid_rows(self) -> int:
        return int(self.valid_N.sum())

    @property
    def anchor_tokens_A(self) -> Tensor:
        return self.pack.tokens_T[self.anchor_A]

    @staticmethod
    def build(
        pack: Pack, caps: AnchorCaps, seed: int, block_size: int, label_mode: LabelMode = "same_position"
    ) -> BlockLayout:
        """Draw anchors and lay out their blocks.

        Same-position labels: row k >= 1 of the block at a predicts x[a+k] with the teacher at a+k-1. Next-token labels:
        row k >= 0 predicts x[a+k+1] with the teacher at a+k. Either way the label is one past the teacher, and a row is
        valid while every token after the anchor up to its label is supervised and inside the document.
        """
        if block_size < 2:
            raise ValueError(f"expected a block size of at least 2, got {block_size}; set drafter.block_size")
        anchor_A = sample_anchors(pack, caps, seed)
        teacher_AB = anchor_A[:, None] + torch.arange(block_size) + (-1 if label_mode == "same_position" else 0)
        label_AB = teacher_AB + 1
        stop_T = _supervised_stop(pack)
        stop_A = stop_T[anchor_A + 1] if anchor_A.numel() else anchor_A
        valid_AB = (label_AB > anchor_A[:, None]) & (label_AB < stop_A[:, None])
        labels_AB = (
            torch.where(valid_AB, pack.tokens_T[torch.where(valid_AB, label_AB, 0)], 0)
            if anchor_A.numel()
            else label_AB
        )
        teacher_row_U, index = torch.unique(teacher_AB[valid_AB], sorted=True, return_inverse=True)
        teacher_index_AB = torch.zeros_like(teacher_AB)
        teacher_index_AB[valid_AB] = index
        return BlockLayout(
            pack=pack,
            block_size=block_size,
            label_mode=label_mode,
            anchor_A=anchor_A,
            anchor_document_A=pack.document_index_T[anchor_A],
            anchor_position_A=pack.position_T[anchor_A],
            labels_N=labels_AB.flatten(),
            valid_N=valid_AB.flatten(),
            teacher_row_U=teacher_row_U,
            teacher_index_N=teacher_index_AB.flatten(),
        )

    def weights_N(self, weights_B: Tensor) -> Tensor:
        """Weight of every row, fp32: the block position's weight where the row is valid, else 0."""
        return torch.where(self.valid_N, weights_B.repeat(self.num_blocks), 0.0)


def _supervised_stop(pack: Pack) -> Tensor:
    """For each index of the pack, the first index at or after it that is unsupervised or past its document's end."""
    num_tokens = pack.num_tokens
    stop = np.where(pack.loss_mask_T.numpy(), num_tokens, np.arange(num_tokens))
    for start, end in zip(pack.document_starts, pack.document_starts[1:], strict=False):
        stop[start:end] = np.minimum.accumulate(np.minimum(stop[start:end], end)[::-1])[::-1]
    return torch.from_numpy(stop)
