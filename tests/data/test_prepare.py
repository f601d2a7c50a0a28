"""A prepared folder: right documents, every record accounted for, the same on every rank, complete or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data import tiny
from tests.ranks import run_ranks
from tp_dflash.blocks import AnchorCaps, BlockLayout
from tp_dflash.config.data import DataConfig
from tp_dflash.data import BatchPlan, DataSplits, open_store, prepare_store, store_folder
from tp_dflash.data import prepare as prepare_module

TOKENIZER = tiny.make_tokenizer()


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_lines(path: Path, records: list[Any]) -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def prepare(folder: Path, records: list[Any], **options: Any) -> DataSplits:
    path = write_lines(folder / "train.jsonl", records)
    return prepare_store(DataConfig(train=[path], **options), TOKENIZER, folder / "prepared")


def bad_lines(folder: Path) -> dict[int, str]:
    lines = (folder / "prepared" / "bad_lines.jsonl").read_text().splitlines()
    return {entry["line"]: entry["reason"] for entry in map(json.loads, lines)}


# Records of the reported case: two good ones, each of the others damaged in its own way.
DAMAGED = [
    chat("hi", "ok"), {"messages": []}, "", {"messages": None}, {"messages": [{"role": "system", "content": "x"}]},
    "not json", chat("hi", ""), chat("hello", "fine"),
]  # fmt: skip


def test_damaged_lines_are_skipped_and_listed(tmp_path: Path) -> None:
    splits = prepare(tmp_path, DAMAGED)
    assert [splits.train.origin(document)[1] for document in range(len(splits.train))] == [1, 8]
    expected_reasons = {
        2: "empty_conversation", 3: "blank_line", 4: "bad_field", 5: "no_assistant_turn", 6: "not_json",
        7: "empty_assistant_turn",
    }  # fmt: skip
    assert bad_lines(tmp_path) == expected_reasons
    assert splits.report.records == 8
    assert splits.report.used_records == 2
    assert sum(splits.report.dropped.values()) == 6


def test_strict_stops_at_the_first_bad_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.jsonl:2: empty_conversation"):
        prepare(tmp_path, DAMAGED, strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def digest_on_rank(rank: int, folder: str) -> tuple[str, int, list[int]]:
    """What a rank that did not prepare sees."""
    splits = open_store(Path(folder))
    plan = BatchPlan(splits.train.length_D, 512, 0, 2).plan_epoch(0)
    return splits.fingerprint, plan.num_steps, [splits.train.document(i).num_tokens for i in range(len(splits.train))]


def test_all_ranks_read_the_same(tmp_path: Path) -> None:
    prepare(tmp_path, DAMAGED)
    one, *others = run_ranks(digest_on_rank, 3, str(tmp_path / "prepared"))
    assert all(other == one for other in others)
    assert one[1] == 1


class TestLengthLimit:
    long_prompt = chat("word " * 128, "ok fine ok")
    good = chat("hi", "good day")

    def test_a_record_that_loses_all_supervision_is_dropped_and_counted(self, tmp_path: Path) -> None:
        splits = prepare(tmp_path, [self.good] * 3 + [self.long_prompt] + [self.good] * 4, max_length=48)
        assert len(splits.train) == 7
        assert bad_lines(tmp_path) == {4: "truncated_away"}

    @pytest.mark.parametrize("over_length", ["truncate", "drop"])
    def test_only_such_records_are_an_error_that_names_the_limit(self, tmp_path: Path, over_length: str) -> None:
        with pytest.raises(ValueError, match=r"raise data\.max_length \(48\)"):
            prepare(tmp_path, [self.long_prompt] * 3, max_length=48, over_length=over_length)

    def test_exactly_the_limit_keeps_all(self, tmp_path: Path) -> None:
        whole = prepare(tmp_path, [self.good]).train.document(0)
        for over_length in ("truncate", "drop", "split"):
            exact = prepare(tmp_path, [self.good], max_length=whole.num_tokens, over_length=over_length)
            assert exact.train.document(0).num_tokens == whole.num_tokens
            assert exact.report.truncated == 0
        cut = prepare(tmp_path, [self.good], max_length=whole.num_tokens - 1)
        assert cut.train.document(0).num_tokens == whole.num_tokens - 1
        assert cut.report.truncated == 1

    def test_long_text_can_be_split(self, tmp_path: Path) -> None:
        text = "the quick brown fox jumps over the lazy dog " * 20
        splits = prepare(tmp_path, [{"text": text}], max_length=50, over_length="split")
        documents = [splits.train.document(i) for i in range(len(splits.train))]
        tokens = torch.cat([document.tokens_S for document in documents])
        assert TOKENIZER.decode(tokens.tolist()) == text
        assert max(document.num_tokens for document in documents) == 50
        assert splits.report.used_records == splits.report.truncated == 1


class TestShortDocuments:
    """Documents shorter than a block, with one anchor, or with none."""

    def test_one_anchor_gives_one_block(self, tmp_path: Path) -> None:
        splits = prepare(tmp_path, [{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 1, 0]}])
        pack = BatchPlan(splits.train.length_D, 64, 0, 1).plan_epoch(0).pack(splits.train, 0)
        layout = BlockLayout.build(pack, AnchorCaps(per_pack=512), seed=0, block_size=16, label_mode="same_position")
        assert layout.anchor_A.tolist() == [1]
        assert layout.labels_N[layout.valid_N].tolist() == [7]

    @pytest.mark.parametrize("mask", [[0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0]])
    def test_documents_without_an_anchor_are_dropped_and_counted(self, tmp_path: Path, mask: list[int]) -> None:
        good = {"input_ids": [5, 6], "loss_mask": [1, 1]}
        splits = prepare(tmp_path, [{"input_ids": [5, 6, 7, 8], "loss_mask": mask}, good])
        assert len(splits.train) == 1
        assert bad_lines(tmp_path) == {1: "no_anchor"}
        assert splits.report.records == 2

    def test_an_empty_mask_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="1 nothing_supervised"):
            prepare(tmp_path, [{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 0, 0]}])


class TestCache:
    def test_it_is_used_again_until_something_changes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = prepare(tmp_path, [chat("hi", "ok")])
        monkeypatch.setattr(prepare_module, "StoreWriter", None)
        assert prepare(tmp_path, [chat("hi", "ok")]).fingerprint == first.fingerprint
        assert prepare(tmp_path, [chat("hi", "ok")], token_budget=9000, num_workers=0).fingerprint == first.fingerprint
        monkeypatch.undo()
        changed = prepare(tmp_path, [chat("hi", "fine")])
        assert changed.fingerprint != first.fingerprint
        assert "fine" in TOKENIZER.decode(changed.train.document(0).tokens_S.tolist())

    def test_the_fingerprint_names_files_tokenizer_template_and_options(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [chat("hi", "ok")])
        copy = write_lines(tmp_path / "b.jsonl", [chat("hi", "ok")])
        other = write_lines(tmp_path / "c.jsonl", [chat("hi", "fine")])
        base = DataConfig(train=[path])
        folders = [
            store_folder(base, TOKENIZER),
            store_folder(DataConfig(train=[other]), TOKENIZER),
            store_folder(DataConfig(train=[path], max_length=100), TOKENIZER),
            store_folder(DataConfig(train=[path, copy]), TOKENIZER),
            store_folder(DataConfig(train=[path], validation=[copy]), TOKENIZER),
            store_folder(base, tiny.make_tokenizer(tiny.QWEN3)),
            store_folder(base, tiny.make_tokenizer(sentencepiece_style=True)),
        ]
        assert len(set(folders)) == len(folders)
        assert store_folder(DataConfig(train=[copy], token_budget=9000), TOKENIZER) == folders[0]

    def test_an_interrupted_preparation_leaves_nothing_that_looks_complete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(prepare_module._Run, "check", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path, [chat("hi", "ok")])
        assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
        with pytest.raises(ValueError, match="no complete folder"):
            open_store(tmp_path / "prepared")


class TestValidation:
    def test_a_share_by_content(self, tmp_path: Path) -> None:
        records = [chat("hi", f"answer {number % 50}") for number in range(100)]
        splits = prepare(tmp_path, records, validation_fraction=0.2)
        assert splits.validation is not None
        assert len(splits.train) + len(splits.validation) == 100
        assert 18 <= len(splits.validation) <= 24
        train, validation = (
            {tuple(store.document(i).tokens_S.tolist()) for i in range(len(store))}
            for store in (splits.train, splits.validation)
        )
        assert not train & validation

    def test_files_of_its_own(self, tmp_path: Path) -> None:
        held_out = write_lines(tmp_path / "held_out.jsonl", [chat("hi", "held out"), "broken"])
        splits = prepare(tmp_path, [chat("hi", "ok")] * 3, validation=[held_out])
        assert splits.validation is not None
        assert (len(splits.train), len(splits.validation)) == (3, 1)
        assert splits.validation.origin(0) == (held_out, 1)
        assert splits.report.dropped == {"not_json": 1}

    def test_its_plan_and_anchors_never_change(self, tmp_path: Path) -> None:
        splits = prepare(
            tmp_path, [chat("hi", f"answer {i} is long enough") for i in range(40)], validation_fraction=0.5
        )
        assert splits.validation is not None
        plan = BatchPlan(splits.validation.length_D, 256, 3, 2)
        packs = [plan.plan_epoch(0).pack(splits.validation, 0) for _ in range(2)]
        layouts = [BlockLayout.build(pack, AnchorCaps(8), 3, 4, "same_position") for pack in packs]
        assert layouts[0].anchor_A.tolist() == layouts[1].anchor_A.tolist()
        assert packs[0].epoch == 0


def test_workers_change_nothing(tmp_path: Path) -> None:
    records = [chat(f"question {i}", f"answer {i} " * (i % 30 + 1)) for i in range(700)] + DAMAGED
    alone, pooled = (prepare_to(tmp_path / str(workers), records, workers) for workers in (0, 2))
    assert alone.fingerprint == pooled.fingerprint
    np.testing.assert_array_equal(alone.train.length_D, pooled.train.length_D)
    for name in ("tokens.bin", "loss_mask.bin", "bad_lines.jsonl", "token_counts.npy"):
        read = [(splits.train.folder / name).read_bytes() for splits in (alone, pooled)]
        assert read[0].replace(b"/0/", b"/2/") == read[1]


def prepare_to(folder: Path, records: list[Any], num_workers: int) -> DataSplits:
    folder.mkdir()
    return prepare(folder, records, num_workers=num_workers)


def test_token_counts_tell_whether_a_mask_token_is_unused(tmp_path: Path) -> None:
    splits = prepare(tmp_path, [chat("hi", "ok")] * 3)
    document = splits.train.document(0)
    token = int(document.tokens_S[0])
    assert splits.train.token_count(token) == 3 * document.tokens_S.tolist().count(token)
    assert splits.train.token_count(TOKENIZER.convert_tokens_to_ids("<|call|>")) == 0
    assert splits.train.token_count(10_000) == 0


def test_further_uses_of_a_document_have_their_own_id(tmp_path: Path) -> None:
    splits = prepare(tmp_path, [chat("hi", "ok"), chat("hi", "fine")])
    first, again = splits.train.document(1), splits.train.document(3)
    assert (first.document_id, again.document_id) == (1, 3)
    assert first.tokens_S.tolist() == again.tokens_S.tolist()
    assert splits.train.origin(3) == splits.train.origin(1)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.jsonl", [chat("hi", "ok")] * 600)
    seen: list[Any] = []
    prepare_store(DataConfig(train=[path]), TOKENIZER, tmp_path / "prepared", seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert seen[-1].records == seen[-1].documents == 600
