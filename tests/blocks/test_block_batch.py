"""A batch joins layout and features of one pack and pads them to fixed shapes with weight 0."""

from __future__ import annotations

import pytest
import torch

from tp_dflash.blocks import (
    AnchorCaps,
    BlockBatch,
    BlockLayout,
    Document,
    FeatureBatch,
    FixedShapes,
    Pack,
    block_position_weights,
)

SHAPES = FixedShapes(num_context=16, num_blocks=5, num_teacher_rows=20)


def _layout(pack_id: int = 3, num_anchors: int = 4) -> BlockLayout:
    document = Document(0, torch.arange(10) + 40, torch.ones(10, dtype=torch.bool))
    return BlockLayout.build(Pack(pack_id, 0, (document,)), AnchorCaps(num_anchors), 0, 4)


def _features(layout: BlockLayout) -> FeatureBatch:
    return FeatureBatch(
        layout.pack.pack_id,
        torch.randn(layout.pack.num_tokens, 6),
        torch.randn(layout.num_teacher_rows, 3),
        torch.randn(layout.num_blocks, 3),
    )


def _assemble(layout: BlockLayout, features: FeatureBatch, shapes: FixedShapes = SHAPES) -> BlockBatch:
    return BlockBatch.assemble(layout, features, block_position_weights(4, "decay"), shapes, torch.device("cpu"))


def test_real_rows_come_first_and_padding_weighs_nothing() -> None:
    layout = _layout()
    features = _features(layout)
    batch = _assemble(layout, features)
    assert batch.features_TF.shape == (16, 6)
    assert torch.equal(batch.features_TF[:10], features.features_TF)
    assert batch.labels_N.shape == batch.weights_N.shape == batch.teacher_index_N.shape == (20,)
    assert torch.equal(batch.weights_N[:16] > 0, layout.valid_N)
    assert not batch.weights_N[16:].any()
    assert batch.teacher_hidden_UD.shape == (20, 3)
    assert batch.geometry.num_blocks == 5


def test_an_empty_pack_becomes_a_batch_of_padding() -> None:
    layout = BlockLayout.build(Pack(3, 0, ()), AnchorCaps(4), 0, 4)
    batch = _assemble(layout, _features(layout))
    assert not batch.weights_N.any()
    assert batch.features_TF.shape == (16, 6)


def test_features_of_another_pack_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(4, 10, .* same prepared data"):
        _assemble(_layout(3), _features(_layout(4)))
    with pytest.raises(ValueError, match="same prepared data"):
        _assemble(_layout(3, 4), _features(_layout(3, 2)))


def test_shapes_that_are_too_small_are_named() -> None:
    layout = _layout()
    with pytest.raises(ValueError, match="at most 2 teacher rows"):
        _assemble(layout, _features(layout), FixedShapes(16, 5, 2))
