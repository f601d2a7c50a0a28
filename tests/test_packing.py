"""From target to loss, a packed document trains exactly as it does alone: nothing crosses the edge of a document."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.target.models import CPU, LAYER_IDS, load_target, make_model, save_model
from tp_dflash.blocks import AnchorCaps, BlockBatch, BlockLayout, Document, FixedShapes, Pack, block_position_weights
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.config.objective import Objective
from tp_dflash.drafter import Drafter, DrafterShape
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss
from tp_dflash.target import Target, read_head_rows, read_target_facts

BLOCK = 8
LENGTHS = (20, 30)
WEIGHTS_B = block_position_weights(BLOCK, "uniform", 4.0)


def documents() -> list[Document]:
    """Supervised from the very first to the very last token."""
    generator = torch.Generator().manual_seed(0)
    return [
        Document(number, torch.randint(3, 60, (length,), generator=generator), torch.ones(length, dtype=torch.bool))
        for number, length in enumerate(LENGTHS)
    ]


class Trainer:
    """The whole way of one pack on one rank in fp32: target, layout, padded batch, drafter, head loss."""

    def __init__(self, folder: Path, sliding_window: int | None) -> None:
        config = save_model(make_model("qwen3"), folder)
        facts = read_target_facts(config)
        self.target: Target = load_target(config)
        settings = DrafterConfig(
            mask_token_id=66,
            block_size=BLOCK,
            num_layers=2,
            target_layer_ids=LAYER_IDS,
            sliding_window=sliding_window,
        )
        self.shape = DrafterShape.of(settings, facts)
        self.drafter = Drafter(self.shape)
        self.drafter.initialise(0, std=0.3)
        self.mask_embedding_D = self.target.embed(torch.tensor([66]))[0]
        self.vocab_range = VocabRange(0, facts.vocab_size, facts.vocab_size)
        self.head_VD = read_head_rows(config, facts, 0, facts.vocab_size)

    def row_losses(self, *parts: Document) -> tuple[dict[tuple[int, int, int], float], dict[int, Tensor]]:
        """Loss of every trained row by (document, anchor position, block position), and each document's context."""
        pack = Pack(0, 0, parts)
        layout = BlockLayout.build(pack, AnchorCaps(per_pack=100), seed=0, block_size=BLOCK, label_mode="same_position")
        features = self.target.features(layout)
        shapes = FixedShapes(64, 60, 60 * BLOCK)
        batch = BlockBatch.assemble(layout, features, WEIGHTS_B, shapes, CPU)
        hidden_ND = self.drafter(
            batch.features_TF, batch.anchor_embeddings_AD, self.mask_embedding_D, batch.geometry
        ).detach()
        head = HeadShard(self.head_VD, self.vocab_range)
        loss = sharded_head_loss(
            hidden_ND, batch.teacher_hidden_UD, batch.teacher_index_N, batch.labels_N, batch.weights_N,
            drafter_head=head, teacher_head=head, objective=Objective(ce=1.0, kl=1.0), block_size=BLOCK, chunk_rows=64,
        )  # fmt: skip
        assert not batch.weights_N[layout.num_blocks * BLOCK :].any(), "no anchor lies on padding"
        found = {}
        for row in batch.weights_N.nonzero().flatten().tolist():
            block = row // BLOCK
            number = parts[int(layout.anchor_document_A[block])].document_id
            found[number, int(layout.anchor_position_A[block]), row % BLOCK] = float(loss.statistics.loss_N[row])
        context_TD = self.drafter._context(batch.features_TF)[: pack.num_tokens]
        pieces = context_TD.split([part.num_tokens for part in parts])
        return found, {part.document_id: piece for part, piece in zip(parts, pieces, strict=True)}


@pytest.mark.parametrize("sliding_window", [None, 5])
def test_packed_and_separate_documents_have_equal_losses_token_by_token(
    tmp_path: Path, sliding_window: int | None
) -> None:
    trainer = Trainer(tmp_path, sliding_window)
    first, second = documents()
    packed, packed_context = trainer.row_losses(first, second)
    expected: dict[tuple[int, int, int], float] = {}
    for document in (first, second):
        alone, context = trainer.row_losses(document)
        expected |= alone
        torch.testing.assert_close(
            packed_context[document.document_id], context[document.document_id], rtol=0, atol=1e-5
        )
    assert packed.keys() == expected.keys()
    assert packed == pytest.approx(expected, rel=0, abs=1e-5)
    # The block from position 17 of 20 is cut at the document's end; every position but the last is an anchor.
    assert [position for number, anchor, position in sorted(packed) if (number, anchor) == (0, 17)] == [1, 2]
    assert {(number, anchor) for number, anchor, _ in packed} == {
        (number, anchor) for number, length in enumerate(LENGTHS) for anchor in range(length - 1)
    }
    # Taken as one document of 50 tokens, the second half sees the first and its losses are others.
    joined = Document(2, torch.cat([first.tokens_S, second.tokens_S]), torch.ones(sum(LENGTHS), dtype=torch.bool))
    as_one, _ = trainer.row_losses(joined)
    assert abs(as_one[2, LENGTHS[0] + 3, 1] - expected[1, 3, 1]) > 1e-3
