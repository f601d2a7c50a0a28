"""One micro-step's input of the drafter and the head, padded to shapes that never change during a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.blocks.feature_batch import FeatureBatch
from tp_dflash.blocks.geometry import BlockGeometry
from tp_dflash.blocks.layout import BlockLayout


@dataclass(frozen=True)
class FixedShapes:
    """Rows that every batch of a run is padded to: T context rows, A blocks, U teacher rows."""

    num_context: int
    num_blocks: int
    num_teacher_rows: int


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """What one drafter rank trains on in one micro-step; padding rows have weight 0 and are seen by nobody.

    features_TF, anchor_embeddings_AD, teacher_hidden_UD as in FeatureBatch; labels_N, teacher_index_N int64; weights_N
    fp32, 0 on rows that are not trained. T, A, U are the fixed shapes, N = A x B.
    """

    pack_id: int
    geometry: BlockGeometry
    features_TF: Tensor
    anchor_embeddings_AD: Tensor
    teacher_hidden_UD: Tensor
    teacher_index_N: Tensor
    labels_N: Tensor
    weights_N: Tensor

    @staticmethod
    def assemble(
        layout: BlockLayout, features: FeatureBatch, weights_B: Tensor, shapes: FixedShapes, device: torch.device
    ) -> BlockBatch:
        """Join a layout with the features of the same pack; an error if they are not of one pack."""
        _check_same_pack(layout, features)
        num_rows = shapes.num_blocks * layout.block_size
        geometry = BlockGeometry.build(
            layout.pack.document_index_T,
            layout.pack.position_T,
            layout.anchor_document_A,
            layout.anchor_position_A,
            layout.block_size,
            num_context=shapes.num_context,
            num_blocks=shapes.num_blocks,
        )
        return BlockBatch(
            pack_id=features.pack_id,
            geometry=geometry.to(device),
            features_TF=_padded_features(features, shapes.num_context, device),
            anchor_embeddings_AD=_pad_rows(features.anchor_embeddings_AD.to(device), shapes.num_blocks, "anchors"),
            teacher_hidden_UD=_pad_rows(features.teacher_hidden_UD.to(device), shapes.num_teacher_rows, "teacher rows"),
            teacher_index_N=_pad_rows(layout.teacher_index_N.to(device), num_rows, "block rows"),
            labels_N=_pad_rows(layout.labels_N.to(device), num_rows, "block rows"),
            weights_N=_pad_rows(_trained_weights(layout, features, weights_B, device), num_rows, "block rows"),
        )


def _padded_features(features: FeatureBatch, num_context: int, device: torch.device) -> Tensor:
    """The buffer that the features arrived in where it has the batch's rows, else a padded copy."""
    buffer = features.padded_features_TF
    if buffer is not None and buffer.shape[0] == num_context:
        return buffer.to(device)
    return _pad_rows(features.features_TF.to(device), num_context, "context rows")


def _trained_weights(layout: BlockLayout, features: FeatureBatch, weights_B: Tensor, device: torch.device) -> Tensor:
    """The layout's weights, 0 for blocks of documents whose features are not finite."""
    weights_N = layout.weights_N(weights_B).to(device)
    if features.finite_documents is None:
        return weights_N
    finite_A = features.finite_documents.to(device)[layout.anchor_document_A.to(device)]
    return weights_N * finite_A.repeat_interleave(layout.block_size)


def _check_same_pack(layout: BlockLayout, features: FeatureBatch) -> None:
    expected = (layout.pack.pack_id, layout.pack.num_tokens, layout.num_teacher_rows, layout.num_blocks)
    got = (
        features.pack_id,
        features.features_TF.shape[0],
        features.teacher_hidden_UD.shape[0],
        features.anchor_embeddings_AD.shape[0],
    )
    if expected != got:
        raise ValueError(
            f"expected features of (pack, tokens, teacher rows, anchors) = {expected}, got {got}; target and drafter "
            "ranks must be given the same prepared data, seed and anchor caps"
        )


def _pad_rows(rows: Tensor, size: int, what: str) -> Tensor:
    missing = size - rows.shape[0]
    if missing < 0:
        raise ValueError(
            f"expected at most {size} {what}, got {rows.shape[0]}; raise data.token_budget or anchors.per_pack, which the run's "
            "fixed shapes follow from"
        )
    if missing == 0:
        return rows
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])
