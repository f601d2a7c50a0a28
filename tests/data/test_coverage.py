"""Coverage counts what blocks really predict, with the anchors that training draws."""

from __future__ import annotations

import json

import pytest

from tests.data import tiny
from tp_dflash.blocks import AnchorCaps, sample_anchors
from tp_dflash.blocks.layout import LabelMode
from tp_dflash.config.data import DataConfig
from tp_dflash.data import BatchPlan, TokenStore, prepare_store
from tp_dflash.data.coverage import anchor_coverage


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Twelve documents with gaps in their supervision."""
    folder = tmp_path_factory.mktemp("coverage")
    records = [
        {"input_ids": [7] * 40, "loss_mask": [int(position % (5 + number) > 1) for position in range(40)]}
        for number in range(12)
    ]
    (folder / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    config = DataConfig(train=[str(folder / "a.jsonl")])
    return prepare_store(config, tiny.make_tokenizer(), folder / "prepared").train


@pytest.mark.parametrize("label_mode", ["same_position", "next_token"])
@pytest.mark.parametrize("per_pack", [1, 10, 1000])
def test_counts_equal_a_walk_through_every_block(store: TokenStore, per_pack: int, label_mode: LabelMode) -> None:
    plan = BatchPlan(store.length_D, 128, 4, 1).plan_epoch(2)
    caps, block_size = AnchorCaps(per_pack), 4
    covered, supervised, anchors = set(), 0, 0
    for pack_id in range(plan.num_packs):
        pack = plan.pack(store, pack_id)
        mask, documents = pack.loss_mask_T.tolist(), pack.document_index_T.tolist()
        supervised += sum(mask)
        for anchor in sample_anchors(pack, caps, 4).tolist():
            anchors += 1
            steps = range(1, block_size) if label_mode == "same_position" else range(1, block_size + 1)
            for offset in steps:
                label = anchor + offset
                if label >= len(mask) or not mask[label] or documents[label] != documents[anchor]:
                    break
                covered.add((pack_id, label))
    coverage = anchor_coverage(plan, store, caps, 4, block_size, label_mode)
    assert (coverage.packs, coverage.supervised, coverage.anchors) == (plan.num_filled_packs, supervised, anchors)
    assert coverage.labels == len(covered)
    assert coverage.share == len(covered) / supervised


def test_all_anchors_cover_all_but_first_tokens(store: TokenStore) -> None:
    coverage = anchor_coverage(BatchPlan(store.length_D, 128, 0, 1).plan_epoch(0), store, AnchorCaps(1000), 0, 8)
    runs = 0
    for number in range(len(store)):
        mask = store.document(number).loss_mask_S.tolist()
        runs += sum(one and not before for one, before in zip(mask, [False, *mask], strict=False))
    assert coverage.anchors == coverage.eligible
    assert coverage.labels == coverage.supervised - runs


def test_a_sample_of_packs(store: TokenStore) -> None:
    coverage = anchor_coverage(
        BatchPlan(store.length_D, 64, 0, 1).plan_epoch(0), store, AnchorCaps(5), 0, 8, max_packs=3
    )
    assert coverage.packs == 3
