"""What a batch takes from its features beside their rows: which documents are finite, and a buffer that is padded already."""

from __future__ import annotations

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

CPU = torch.device("cpu")
WEIGHTS_B = block_position_weights(4, "uniform")
SHAPES = FixedShapes(num_context=30, num_blocks=10, num_teacher_rows=40)


def _layout() -> BlockLayout:
    documents = tuple(Document(i, torch.arange(8), torch.ones(8, dtype=torch.bool)) for i in range(3))
    return BlockLayout.build(Pack(0, 0, documents), AnchorCaps(per_pack=9, per_document=3), seed=0, block_size=4)


def _features(layout: BlockLayout, finite: torch.Tensor | None, buffer_TF: torch.Tensor) -> FeatureBatch:
    return FeatureBatch(
        pack_id=0,
        features_TF=buffer_TF[:24],
        teacher_hidden_UD=torch.ones(layout.num_teacher_rows, 2),
        anchor_embeddings_AD=torch.ones(9, 2),
        finite_documents=finite,
        padded_features_TF=buffer_TF if finite is not None else None,
    )


def _buffer() -> torch.Tensor:
    buffer_TF = torch.zeros(30, 6)
    buffer_TF[:24] = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    return buffer_TF


def test_blocks_of_documents_that_are_not_finite_have_no_weight() -> None:
    layout = _layout()
    plain = BlockBatch.assemble(layout, _features(layout, None, _buffer()), WEIGHTS_B, SHAPES, CPU)
    flags = torch.tensor([True, False, True])
    batch = BlockBatch.assemble(layout, _features(layout, flags, _buffer()), WEIGHTS_B, SHAPES, CPU)
    weights_AB, plain_AB = batch.weights_N.view(10, 4), plain.weights_N.view(10, 4)
    dropped_A = torch.nn.functional.pad(layout.anchor_document_A == 1, (0, 1))
    assert dropped_A.sum() == 3
    assert (plain_AB[dropped_A].sum(dim=1) > 0).all()
    assert (weights_AB[dropped_A] == 0).all()
    assert torch.equal(weights_AB[~dropped_A], plain_AB[~dropped_A])


def test_a_padded_buffer_is_used_as_it_is() -> None:
    layout, buffer_TF, flags = _layout(), _buffer(), torch.ones(3, dtype=torch.bool)
    copied = BlockBatch.assemble(layout, _features(layout, None, buffer_TF), WEIGHTS_B, SHAPES, CPU)
    shared = BlockBatch.assemble(layout, _features(layout, flags, buffer_TF), WEIGHTS_B, SHAPES, CPU)
    assert shared.features_TF.data_ptr() == buffer_TF.data_ptr()
    assert torch.equal(shared.features_TF, copied.features_TF)
    wider = FixedShapes(num_context=32, num_blocks=10, num_teacher_rows=40)
    assert (
        BlockBatch.assemble(layout, _features(layout, flags, buffer_TF), WEIGHTS_B, wider, CPU).features_TF.shape[0]
        == 32
    )
