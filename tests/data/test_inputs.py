"""Every kind of file and record that people have becomes the same documents."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from tests.data import tiny
from tp_dflash.config.data import DataConfig
from tp_dflash.data import BatchPlan, DataSplits, prepare_store
from tp_dflash.data.json_values import numbered_values
from tp_dflash.data.lines import numbered_lines

TOKENIZER = tiny.make_tokenizer()
QUESTION, ANSWER = "What is two plus two?", "four"
CHAT = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}


def prepare(folder: Path, *sources: Any, **options: Any) -> DataSplits:
    return prepare_store(DataConfig(train=list(sources), **options), TOKENIZER, folder / "prepared")


def texts(splits: DataSplits) -> list[tuple[str, str]]:
    """Whole and supervised text of each document."""
    documents = [splits.train.document(index) for index in range(len(splits.train))]
    return [
        (
            TOKENIZER.decode(document.tokens_S.tolist()),
            TOKENIZER.decode(document.tokens_S[document.loss_mask_S].tolist()),
        )
        for document in documents
    ]


EXPECTED = (
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>\n",
    f"{ANSWER}<|im_end|>",
)

RECORDS = {
    "messages": CHAT,
    "content parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "two plus two?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
        ]
    },
    "sharegpt": {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]},
    "sharegpt with roles": {"conversation": [{"role": "user", "content": QUESTION}, {"from": "assistant", "value": ANSWER}]},
    "prompt and completion": {"prompt": QUESTION, "completion": ANSWER},
    "prompt and response": {"prompt": QUESTION, "response": ANSWER},
    "question and answer": {"question": QUESTION, "answer": ANSWER},
    "prompt messages": {"prompt": CHAT["messages"][:1], "completion": CHAT["messages"][1:]},
    "instruction": {"instruction": QUESTION, "input": "", "output": ANSWER},
    "with other fields": {"id": 7, "source": None, **CHAT},
    "null fields": {"messages": [{"role": "user", "content": QUESTION, "name": None, "tool_calls": None},
                                 {"role": "assistant", "content": ANSWER, "reasoning_content": None}]},
    "trailing question": {"messages": [*CHAT["messages"], {"role": "user", "content": "thanks"}]},
}  # fmt: skip


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
def test_forms_of_one_conversation(tmp_path: Path, record: dict[str, Any]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert texts(prepare(tmp_path, str(tmp_path / "a.jsonl"))) == [EXPECTED]


def test_instruction_with_input(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"instruction": "Add", "input": "2 2", "output": "4"}))
    ((whole, supervised),) = texts(prepare(tmp_path, str(tmp_path / "a.jsonl")))
    assert "user\nAdd\n\n2 2<|im_end|>" in whole
    assert supervised == "4<|im_end|>"


def test_raw_pairs_have_no_template(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "2+2=", "completion": " four"}))
    splits = prepare(tmp_path, str(tmp_path / "a.jsonl"), template={"pairs": "raw"})
    assert texts(splits) == [("2+2= four<|im_end|>", " four<|im_end|>")]


def test_system_field_and_turns_of_tools(tmp_path: Path) -> None:
    record = {
        "system": "You are helpful.",
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "tool", "value": "rain"},
            {"from": "gpt", "value": "ok"},
        ],
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    ((whole, supervised),) = texts(prepare(tmp_path, str(tmp_path / "a.jsonl")))
    assert whole.startswith("<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nhi")
    assert "<|im_start|>tool\nrain<|im_end|>" in whole
    assert supervised == "ok<|im_end|>"


@pytest.mark.parametrize(
    ("mask", "expected_mask"),
    [
        ({}, [1, 1, 1, 1]),
        ({"loss_mask": [0, 1, 1, 0]}, [0, 1, 1, 0]),
        ({"loss_mask": [False, True, True, True]}, [0, 1, 1, 1]),
        ({"assistant_masks": [0, 0, 1, 1]}, [0, 0, 1, 1]),
        ({"labels": [-100, 6, 7, -100]}, [0, 1, 1, 0]),
    ],
)
def test_tokens_that_somebody_else_made(tmp_path: Path, mask: dict[str, Any], expected_mask: list[int]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"input_ids": [5, 6, 7, 8], **mask}))
    document = prepare(tmp_path, str(tmp_path / "a.jsonl")).train.document(0)
    assert document.tokens_S.tolist() == [5, 6, 7, 8]
    assert document.loss_mask_S.int().tolist() == expected_mask


BAD_RECORDS = {
    "no_known_field": ({"foo": 1}, "unknown_fields"),
    "messages is text": ({"messages": "hi"}, "bad_field"),
    "message is text": ({"messages": ["hi"]}, "bad_message"),
    "role is missing": ({"messages": [{"content": "hi"}]}, "unknown_role"),
    "role is a number": ({"messages": [{"role": 3, "content": "hi"}]}, "unknown_role"),
    "content is a number": ({"messages": [{"role": "user", "content": 3}]}, "bad_message"),
    "picture": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "non_text_content"),
    "blank answer": ({"messages": [{"role": "assistant", "content": " \n"}]}, "empty_assistant_turn"),
    "one blank answer of two": (
        {"messages": [{"role": "assistant", "content": ""}, *CHAT["messages"]]}, "empty_assistant_turn",
    ),
    "tags alone": (
        {"messages": [*CHAT["messages"], {"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\n</think>"}]},
        "empty_assistant_turn",
    ),
    "half a character": ({"messages": [*CHAT["messages"][:1], {"role": "assistant", "content": "\ud83d"}]}, "bad_unicode"),
    "half a character in text": ({"text": "\ud83d"}, "bad_unicode"),
    "text is null": ({"text": None}, "bad_field"),
    "text is empty": ({"text": ""}, "empty_text"),
    "ids too large": ({"input_ids": [5, 100_000]}, "token_id_out_of_range"),
    "ids negative": ({"input_ids": [5, -1]}, "token_id_out_of_range"),
    "ids are huge": ({"input_ids": [5, 10**30]}, "token_id_out_of_range"),
    "ids are text": ({"input_ids": ["5"]}, "bad_field"),
    "mask too short": ({"input_ids": [5, 6], "loss_mask": [1]}, "bad_field"),
    "tools are text": ({"tools": "x", **CHAT}, "bad_field"),
    "template variables are text": ({"chat_template_kwargs": "x", **CHAT}, "bad_field"),
    "call without a name": ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "bad_message"),
    "call in words": ({"conversations": [{"from": "function_call", "value": "look it up"}]}, "bad_message"),
    "a list": ([1, 2], "not_an_object"),
    "a number": (3, "not_an_object"),
}  # fmt: skip


@pytest.mark.parametrize(("record", "reason"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_bad_records_are_named(tmp_path: Path, record: Any, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(CHAT)}\n")
    splits = prepare(tmp_path, str(tmp_path / "a.jsonl"))
    assert splits.report.dropped == {reason: 1}
    assert texts(splits) == [EXPECTED]


JSONL = (json.dumps(CHAT) + "\n").encode() * 3


def zstandard_compress(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.compress(data)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstandard_compress)],
)
@pytest.mark.parametrize("kind", [".jsonl", ".json"])
def test_compressed_files(tmp_path: Path, kind: str, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"a{kind}{suffix}"
    path.write_bytes(compress(JSONL))
    assert texts(prepare(tmp_path, str(path))) == [EXPECTED] * 3


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard_compress)]
)
def test_a_cut_off_compressed_file_is_used_as_far_as_it_goes(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    drawn = random.Random(0)
    records = [json.dumps({"text": f"{drawn.random()} hello hello"}) for _ in range(10_000)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress("\n".join(records).encode())[:-2000])
    splits = prepare(tmp_path, str(path))
    assert splits.report.dropped == {"unreadable_file": 1}
    assert 100 < len(splits.train) < 10_000
    with pytest.raises(ValueError, match=r"a\.jsonl\.\w+:\d+: unreadable_file"):
        prepare(tmp_path, str(path), strict=True)


JSON_FILES = {
    "array": json.dumps([CHAT] * 3),
    "indented array": json.dumps([CHAT] * 3, indent=4),
    "one after the other": json.dumps(CHAT, indent=2) * 3,
    "with a byte order mark": "\ufeff" + json.dumps([CHAT] * 3),
}


@pytest.mark.parametrize("content", JSON_FILES.values(), ids=JSON_FILES.keys())
def test_json_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    splits = prepare(tmp_path, str(tmp_path / "a.json"))
    assert texts(splits) == [EXPECTED] * 3
    assert [splits.train.origin(document)[1] for document in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "used", "reason"),
    [
        (json.dumps([CHAT] * 3)[:-1], 3, "not_json"),
        (json.dumps([CHAT] * 3)[:-20], 2, "not_json"),
        (json.dumps([CHAT, 3, CHAT]), 2, "not_an_object"),
        (json.dumps(CHAT) + "x", 1, "not_json"),
    ],
)
def test_damaged_json_files(tmp_path: Path, content: str, used: int, reason: str) -> None:
    (tmp_path / "a.json").write_text(content)
    splits = prepare(tmp_path, str(tmp_path / "a.json"))
    assert len(splits.train) == used
    assert splits.report.dropped == {reason: 1}


def test_values_of_any_size_come_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tp_dflash.data.json_values._BLOCK_BYTES", 7)
    values = [{"text": "é" * size} for size in (0, 1, 5, 100)]
    content = json.dumps(values, ensure_ascii=False).encode()
    assert [json.loads(value) for _, value in numbered_values(io.BytesIO(content))] == values


def test_only_line_feeds_end_lines() -> None:
    content = "\ufeffone\u2028two\r\nthree\x0bfour\r\n\n".encode()
    assert [line.decode() for _, line in numbered_lines(io.BytesIO(content)) if line is not None] == [
        "one\u2028two\r\n",
        "three\x0bfour\r\n",
        "\n",
    ]


def test_lines_beyond_the_limit_are_passed_over_in_pieces() -> None:
    content = b"short\n" + b"x" * 100 + b"\nexactly10\n" + b"y" * 50
    lines = list(numbered_lines(io.BytesIO(content), max_bytes=10))
    assert lines == [(1, b"short\n"), (2, None), (3, b"exactly10\n"), (4, None)]


def test_parquet(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist([CHAT] * 300), tmp_path / "a.parquet")
    splits = prepare(tmp_path, str(tmp_path / "a.parquet"))
    assert texts(splits)[299] == EXPECTED
    assert splits.train.origin(299) == (str(tmp_path / "a.parquet"), 300)


def test_parquet_through_workers(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist([CHAT] * 3), tmp_path / "a.parquet")
    assert texts(prepare(tmp_path, str(tmp_path / "a.parquet"), num_workers=1)) == [EXPECTED] * 3


class TestDatasets:
    def test_folders_and_arrow_files(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        rows = datasets.Dataset.from_list([CHAT] * 3)
        rows.save_to_disk(tmp_path / "one")
        datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(tmp_path / "splits")
        assert texts(prepare(tmp_path, str(tmp_path / "one"))) == [EXPECTED] * 3
        assert texts(prepare(tmp_path, str(tmp_path / "splits"))) == [EXPECTED] * 3
        assert texts(prepare(tmp_path, {"path": str(tmp_path / "splits"), "split": "test"})) == [EXPECTED]
        assert texts(prepare(tmp_path, str(next((tmp_path / "one").glob("*.arrow"))))) == [EXPECTED] * 3
        with pytest.raises(ValueError, match="expected a split 'dev', got train, test"):
            prepare(tmp_path, {"path": str(tmp_path / "splits"), "split": "dev"})

    def test_hub_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("datasets")
        asked: list[Any] = []

        def load_dataset(*names: str, split: str) -> Any:
            asked.append((*names, split))
            return datasets.Dataset.from_list([CHAT])

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        splits = prepare(tmp_path, {"path": "someone/chats", "subset": "small", "split": "dev"})
        assert texts(splits) == [EXPECTED]
        assert asked == [("someone/chats", "small", "dev")]

    def test_without_the_package_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ValueError, match=r"pip install .*tp_dflash\[data\]"):
            prepare(tmp_path, "someone/chats")


class TestSources:
    def write(self, path: Path, count: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((json.dumps({"text": f"{path.stem} hello"}) + "\n") * count)

    def test_folders_globs_and_lists(self, tmp_path: Path) -> None:
        for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "deep/notes.txt", "deep/.hidden.jsonl"):
            self.write(tmp_path / "in" / name, 1)
        for source in (str(tmp_path / "in"), str(tmp_path / "in" / "**" / "*.jsonl")):
            assert [text for text, _ in texts(prepare(tmp_path, source))] == ["a hello", "b hello", "c hello"]
        listed = prepare(tmp_path, str(tmp_path / "in" / "b.jsonl"), str(tmp_path / "in" / "a.jsonl"))
        assert [text for text, _ in texts(listed)] == ["b hello", "a hello"]

    @pytest.mark.parametrize("source", ["missing.jsonl", "*.jsonl", "no such thing", "a/b/c", "notes.txt"])
    def test_sources_that_stand_for_nothing(self, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(ValueError, match=r"data\.train"):
            prepare(tmp_path, source)

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        with pytest.raises(ValueError, match="folder with records"):
            prepare(tmp_path, str(tmp_path / "in"))

    def test_weighted_mixture(self, tmp_path: Path) -> None:
        self.write(tmp_path / "often.jsonl", 20)
        self.write(tmp_path / "seldom.jsonl", 40)
        sources = [
            {"path": str(tmp_path / "often.jsonl"), "weight": 2.0},
            {"path": str(tmp_path / "seldom.jsonl"), "weight": 0.25},
        ]
        store = prepare(tmp_path, *sources).train
        plan = BatchPlan(store.length_D, 64, 0, 1, store.weight_D)
        seen: list[str] = []
        for epoch in range(4):
            epoch_plan = plan.plan_epoch(epoch)
            packs = [epoch_plan.pack(store, pack_id) for pack_id in range(epoch_plan.num_packs)]
            seen += [TOKENIZER.decode(document.tokens_S.tolist()) for pack in packs for document in pack.documents]
        assert seen.count("often hello") == 4 * 2 * 20
        assert seen.count("seldom hello") == 40
