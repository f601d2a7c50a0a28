"""The draw of anchors depends on seed, epoch and document only, and the caps keep the lowest priorities."""

from __future__ import annotations

import torch

from tp_dflash.blocks import AnchorCaps, Document, Pack, sample_anchors
from tp_dflash.blocks.anchors import anchor_priorities


def _document(document_id: int, length: int = 50) -> Document:
    return Document(document_id, torch.arange(length), torch.ones(length, dtype=torch.bool))


def _drawn(pack: Pack, caps: AnchorCaps, seed: int = 1) -> dict[int, list[int]]:
    """Anchors by document id."""
    anchors = sample_anchors(pack, caps, seed)
    documents, positions = pack.document_index_T[anchors], pack.position_T[anchors]
    return {
        document.document_id: positions[documents == index].tolist() for index, document in enumerate(pack.documents)
    }


def test_companions_and_order_do_not_change_a_documents_anchors() -> None:
    caps = AnchorCaps(per_pack=1000, per_document=5)
    alone = _drawn(Pack(3, 2, (_document(7),)), caps)
    together = _drawn(Pack(0, 2, (_document(1, 9), _document(7), _document(2))), caps)
    assert alone[7] == together[7]
    assert len(alone[7]) == 5


def test_seed_epoch_and_document_change_the_draw() -> None:
    caps = AnchorCaps(per_pack=5)
    base = _drawn(Pack(0, 0, (_document(7),)), caps)[7]
    assert base != _drawn(Pack(0, 1, (_document(7),)), caps)[7]
    assert base != _drawn(Pack(0, 0, (_document(7),)), caps, seed=2)[7]
    assert base != _drawn(Pack(0, 0, (_document(8),)), caps)[8]


def test_the_draw_is_fixed_for_all_time() -> None:
    """Frozen values: if these change, resumed and repeated runs no longer see the anchors they saw before."""
    assert anchor_priorities(3, 0, 0, 0).tolist() == [213000021201967259, 4455796210202625458, 2055444239878205049]
    assert anchor_priorities(2, 5, 2, 9).tolist() == [18254140864482075445, 16080824976230494666]


def test_pack_cap_keeps_the_lowest_priorities_of_what_the_document_cap_left() -> None:
    documents = tuple(_document(i, 30) for i in range(4))
    pack = Pack(0, 0, documents)
    wide = _drawn(pack, AnchorCaps(per_pack=1000, per_document=8))
    narrow = _drawn(pack, AnchorCaps(per_pack=10, per_document=8))
    ranked = sorted((anchor_priorities(30, 1, 0, i)[a], i, a) for i, anchors in wide.items() for a in anchors)
    expected = {i: sorted(a for _, j, a in ranked[:10] if j == i) for i in range(4)}
    assert narrow == expected


def test_fewer_eligible_than_asked_gives_distinct_anchors() -> None:
    mask = torch.zeros(40, dtype=torch.bool)
    mask[[3, 4, 10, 11, 20, 21]] = True
    pack = Pack(0, 0, (Document(0, torch.arange(40), mask),))
    assert sample_anchors(pack, AnchorCaps(512), 0).tolist() == [3, 10, 20]


def test_a_grid_tiles_each_supervised_stretch_and_is_the_same_in_every_epoch() -> None:
    mask = torch.ones(40, dtype=torch.bool)
    mask[[0, 1, 17]] = False
    document = Document(0, torch.arange(40), mask)
    caps = AnchorCaps(512, spacing=4)
    for epoch in (0, 1):
        anchors = sample_anchors(Pack(0, epoch, (document,)), caps, 0).tolist()
        assert anchors == [2, 6, 10, 14, 18, 22, 26, 30, 34, 38]
    assert len(sample_anchors(Pack(0, 0, (document,)), AnchorCaps(3, spacing=4), 0)) == 3
    assert sample_anchors(Pack(0, 0, (Document(0, torch.arange(4), mask[:4] & False),)), caps, 0).tolist() == []
