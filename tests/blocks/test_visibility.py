"""The visibility predicate against a slow reading of the definition, and the leaks that others had."""

from __future__ import annotations

import itertools

import pytest
import torch

from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, Pack, visible


def _geometry(documents: list[int], anchors: list[tuple[int, int]], block_size: int, **padding: int) -> BlockGeometry:
    """Documents by length; anchors as (document, position)."""
    document_T = torch.cat([torch.full((length,), i) for i, length in enumerate(documents)])
    position_T = torch.cat([torch.arange(length) for length in documents])
    anchor_document_A = torch.tensor([document for document, _ in anchors], dtype=torch.int64)
    anchor_position_A = torch.tensor([position for _, position in anchors], dtype=torch.int64)
    return BlockGeometry.build(document_T, position_T, anchor_document_A, anchor_position_A, block_size, **padding)


def _dense(geometry: BlockGeometry, **rules: object) -> torch.Tensor:
    num_rows = geometry.anchor_position_N.shape[0]
    query, key = torch.arange(num_rows), torch.arange(geometry.document_M.shape[0])
    return visible(geometry, query[:, None], key[None, :], **rules)


@pytest.mark.parametrize(("window", "causal"), [(None, False), (5, False), (5, True), (None, True)])
def test_predicate_follows_the_definition(window: int | None, causal: bool) -> None:
    documents, anchors, block = [9, 14], [(1, 3), (0, 6), (1, 3), (1, 11), (0, 0)], 4
    seen = _dense(_geometry(documents, anchors, block), window=window, causal=causal)
    for (index, (document, anchor)), k in itertools.product(enumerate(anchors), range(block)):
        row = seen[index * block + k]
        expected = []
        for other, length in enumerate(documents):
            for t in range(length):
                near = window is None or t > anchor + k - window
                expected.append(other == document and t < anchor and near)
        for other in range(len(anchors)):
            for j in range(block):
                near = (window is None or j > k - window) and (not causal or j <= k)
                expected.append(other == index and near)
        assert row.tolist() == expected, (index, k)


def test_padding_blocks_see_themselves_only_and_padding_context_is_seen_by_nobody() -> None:
    geometry = _geometry([6], [(0, 4)], 3, num_context=9, num_blocks=3)
    seen = _dense(geometry)
    assert seen[:3, :9].tolist() == [[True] * 4 + [False] * 5] * 3
    for block in (1, 2):
        rows = seen[block * 3 : block * 3 + 3]
        assert rows.sum() == 9
        assert bool(rows[:, 9 + block * 3 : 9 + block * 3 + 3].all())


def test_a_packs_layout_gives_the_geometry_of_its_documents() -> None:
    """Packed documents see the same as alone: positions restart at 0 and no context crosses the boundary."""
    first = Document(0, torch.arange(5), torch.ones(5, dtype=torch.bool))
    second = Document(1, torch.arange(6), torch.ones(6, dtype=torch.bool))
    layout = BlockLayout.build(Pack(0, 0, (first, second)), AnchorCaps(99), 0, 2)
    geometry = BlockGeometry.build(
        layout.pack.document_index_T, layout.pack.position_T, layout.anchor_document_A, layout.anchor_position_A, 2
    )
    seen = _dense(geometry)[:, :11]
    for index, (document, position) in enumerate(
        zip(layout.anchor_document_A.tolist(), layout.anchor_position_A.tolist(), strict=True)
    ):
        start = 0 if document == 0 else 5
        assert seen[2 * index].nonzero().flatten().tolist() == list(range(start, start + position))


def test_too_many_rows_for_the_fixed_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 4 context rows, got 6; raise data.token_budget"):
        _geometry([6], [(0, 4)], 3, num_context=4)
    with pytest.raises(ValueError, match=r"at most 1 anchors, got 2; raise anchors\.per_pack"):
        _geometry([6], [(0, 4), (0, 2)], 3, num_blocks=1)
