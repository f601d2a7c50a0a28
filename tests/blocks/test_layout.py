"""Labels, validity and teacher rows of blocks, against a slow reading of the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, Pack, block_position_weights, eligible_anchors

ALL = AnchorCaps(per_pack=10_000)


def _document(tokens: list[int], mask: list[int], document_id: int = 0) -> Document:
    return Document(document_id, torch.tensor(tokens, dtype=torch.int64), torch.tensor(mask, dtype=torch.bool))


def _supervised(start: int, length: int, document_id: int) -> Document:
    return _document(list(range(start, start + length)), [1] * length, document_id)


def _pack(*documents: Document) -> Pack:
    return Pack(0, 0, documents)


def _expected_rows(pack: Pack, anchor: int, block_size: int, next_token: bool) -> list[tuple[bool, int, int]]:
    """(valid, label, teacher index in the pack) of each block position, one at a time."""
    document = int(pack.document_index_T[anchor])
    start, end = pack.document_starts[document], pack.document_starts[document + 1]
    tokens, mask = pack.documents[document].tokens_S, pack.documents[document].loss_mask_S
    rows = []
    for k in range(block_size):
        label = anchor - start + k + (1 if next_token else 0)
        valid = label > anchor - start and label < end - start
        valid = valid and all(bool(mask[j]) for j in range(anchor - start + 1, label + 1))
        rows.append((valid, int(tokens[label]) if valid else 0, start + label - 1))
    return rows


masks = st.lists(st.booleans(), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(masks, min_size=0, max_size=4), st.integers(2, 9), st.booleans(), st.integers(0, 3))
def test_layout_follows_the_definition(
    all_masks: list[list[bool]], block_size: int, next_token: bool, seed: int
) -> None:
    documents = [
        _document(list(range(7, 7 + len(mask))), [int(m) for m in mask], i) for i, mask in enumerate(all_masks)
    ]
    pack = _pack(*documents)
    layout = BlockLayout.build(pack, ALL, seed, block_size, "next_token" if next_token else "same_position")
    expected_anchors = [
        start + a
        for document, start in zip(documents, pack.document_starts, strict=False)
        for a in range(document.num_tokens - 1)
        if document.loss_mask_S[a] and document.loss_mask_S[a + 1]
    ]
    assert layout.anchor_A.tolist() == expected_anchors
    for index, anchor in enumerate(expected_anchors):
        for k, (valid, label, teacher) in enumerate(_expected_rows(pack, anchor, block_size, next_token)):
            row = index * block_size + k
            assert bool(layout.valid_N[row]) == valid
            assert int(layout.labels_N[row]) == label
            if valid:
                assert int(layout.teacher_row_U[layout.teacher_index_N[row]]) == teacher
    assert layout.teacher_row_U.tolist() == sorted(set(layout.teacher_row_U.tolist()))


def test_labels_are_not_shifted() -> None:
    layout = BlockLayout.build(_pack(_document(list(range(20)), [0] * 10 + [1] * 10)), AnchorCaps(1), 3, 4)
    anchor = int(layout.anchor_A[0])
    trained = layout.labels_N[layout.valid_N].tolist()
    assert trained == list(range(anchor + 1, min(anchor + 4, 20)))
    assert not layout.valid_N[0]


def test_next_token_labels_train_the_anchor_row_too() -> None:
    layout = BlockLayout.build(_pack(_supervised(0, 20, 0)), ALL, 0, 4, "next_token")
    assert layout.anchor_A[10] == 10
    assert layout.labels_N[40:44].tolist() == [11, 12, 13, 14]
    assert layout.teacher_row_U[layout.teacher_index_N[40:44]].tolist() == [10, 11, 12, 13]


def test_blocks_end_at_the_documents_end() -> None:
    """Documents of 20 and 30 tokens, supervised to the last and the first token: no label from the neighbour."""
    first, second = _supervised(100, 20, 0), _supervised(500, 30, 1)
    packed = BlockLayout.build(_pack(first, second), ALL, 0, 8)
    at_17 = int((packed.anchor_A == 17).nonzero())
    assert packed.labels_N.view(-1, 8)[at_17].tolist() == [0, 118, 119, 0, 0, 0, 0, 0]
    assert packed.anchor_position_A[packed.anchor_document_A == 1].tolist() == list(range(29))
    alone = BlockLayout.build(_pack(second), ALL, 0, 8)
    assert packed.labels_N.view(-1, 8)[packed.anchor_document_A == 1].tolist() == alone.labels_N.view(-1, 8).tolist()


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([], []), ([1], []), ([1, 1], [0]), ([0, 1], []), ([1, 0, 1], []), ([0, 1, 1, 1, 0, 1, 1], [1, 2, 5])],
)
def test_eligible_anchors_need_a_supervised_successor(mask: list[int], expected: list[int]) -> None:
    assert eligible_anchors(torch.tensor(mask, dtype=torch.bool)).tolist() == expected


def test_documents_shorter_than_a_block_and_single_anchors_are_trained() -> None:
    short = _document(list(range(12)), [0] * 7 + [1] * 5)
    layout = BlockLayout.build(_pack(short), AnchorCaps(512), 0, 16)
    assert layout.num_blocks == 4
    assert layout.num_valid_rows == 4 + 3 + 2 + 1
    single = BlockLayout.build(_pack(_document([5, 6, 7], [0, 1, 1])), AnchorCaps(512), 0, 16)
    assert single.anchor_A.tolist() == [1]
    assert single.labels_N[single.valid_N].tolist() == [7]


def test_an_empty_pack_has_an_empty_layout() -> None:
    layout = BlockLayout.build(_pack(), AnchorCaps(4), 0, 8)
    assert (layout.num_blocks, layout.num_teacher_rows, layout.num_valid_rows) == (0, 0, 0)
    assert layout.weights_N(block_position_weights(8, "decay")).shape == (0,)


def test_weights_decay_from_the_first_trained_position() -> None:
    assert block_position_weights(8, "decay")[:3].tolist() == pytest.approx([0.0, 1.0, 0.7788008])
    assert block_position_weights(16, "decay", gamma=2.0)[3].item() == pytest.approx(0.36787945)
    assert block_position_weights(4, "uniform").tolist() == [0, 1, 1, 1]
    assert block_position_weights(4, "decay", gamma=1.0, first_trained=0)[0] == 1
    with pytest.raises(ValueError, match="gamma -1"):
        block_position_weights(8, "decay", gamma=-1)
