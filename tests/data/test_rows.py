"""Rows of Parquet files and data sets mean what their records meant, whatever Arrow made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from tests.data import tiny
from tests.data.test_inputs import CHAT, EXPECTED, prepare, texts
from tp_dflash.config.data import DataConfig
from tp_dflash.data import prepare_store
from tp_dflash.data.bad_record import BadRecordError
from tp_dflash.data.rows import read_rows


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    """A conversation whose last turn has these fields."""
    roles = ("user", "assistant")
    turns: list[dict[str, Any]] = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    turns[-1] |= fields
    return {"messages": turns}


def tool(name: str, parameter: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"}}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


RAGGED = [
    chat("hi", "ok"),
    chat("hi", "not this", weight=0.0),
    chat("hi", "nor this", train=False),
    chat("hi", "this", weight=1.0, train=True),
    chat("hi", "fine", reasoning_content="hm"),
    {"text": "plain words"},
    {"prompt": "hi", "completion": "ok"},
    {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
    {"input_ids": [5, 6, 7]},
    chat("hi", "ok") | {"chat_template_kwargs": {"enable_thinking": False}},
    chat("hi", "ok") | {"tools": [tool("weather", "city"), tool("time", "zone")]},
    {"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bonn"}}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "1"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "time", "arguments": {"zone": "UTC"}}}]},
    ]},
]  # fmt: skip


def test_fields_that_other_rows_have_change_nothing(tmp_path: Path) -> None:
    """Arrow gives every row all fields of all rows. Each must become what its own line of JSON becomes."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RAGGED))
    keys = dict.fromkeys(key for record in RAGGED for key in record)
    parquet.write_table(pyarrow.Table.from_pylist([keys | record for record in RAGGED]), tmp_path / "a.parquet")
    tokenizer = tiny.make_tokenizer(tiny.QWEN3)
    found, expected = (
        prepare_store(DataConfig(train=[str(tmp_path / name)]), tokenizer, tmp_path / f"prepared-{name}")
        for name in ("a.parquet", "a.jsonl")
    )
    assert found.report.dropped == expected.report.dropped == {"nothing_supervised": 2}
    assert found.train.num_documents == len(RAGGED) - 2
    for index in range(found.train.num_documents):
        got, wanted = found.train.document(index), expected.train.document(index)
        assert tokenizer.decode(got.tokens_S.tolist()) == tokenizer.decode(wanted.tokens_S.tolist())
        assert got.loss_mask_S.tolist() == wanted.loss_mask_S.tolist()


def test_null_says_nothing_in_lines_of_json_either(tmp_path: Path) -> None:
    record = {"conversations": None, "input_ids": None, "tools": None, "chat_template_kwargs": None, **CHAT}
    record["messages"] = [turn | {"weight": None, "train": None, "tool_calls": None} for turn in CHAT["messages"]]
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    assert texts(prepare(tmp_path, str(tmp_path / "a.jsonl"))) == [EXPECTED]


def test_rows_that_are_no_text_are_named_and_the_others_used(tmp_path: Path) -> None:
    column = pyarrow.array([b"fine words", b"half \xf0\x9f", b"more words"], pyarrow.binary())
    table = pyarrow.table({"text": pyarrow.Array.from_buffers(pyarrow.string(), 3, column.buffers())})
    first, broken, last = read_rows(table)
    assert (first, last) == ({"text": "fine words"}, {"text": "more words"})
    assert isinstance(broken, BadRecordError)
    parquet.write_table(table, tmp_path / "a.parquet")
    splits = prepare(tmp_path, str(tmp_path / "a.parquet"))
    assert [whole for whole, _ in texts(splits)] == ["fine words", "more words"]
    assert splits.report.dropped == {"not_utf8": 1}
    (line,) = (splits.train.folder / "bad_lines.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == 2


@pytest.mark.parametrize("damage", ["no footer", "bad pages"])
def test_damaged_parquet_files_are_named_and_the_others_used(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "b.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([CHAT] * 600), path, row_group_size=300, compression="zstd")
    content = bytearray(path.read_bytes())
    if damage == "no footer":
        del content[len(content) // 2 :]
    else:
        start = parquet.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
        content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    (tmp_path / "a.jsonl").write_text(json.dumps(CHAT))
    splits = prepare(tmp_path, str(tmp_path / "a.jsonl"), str(path))
    assert splits.report.dropped == {"unreadable_file": 1}
    assert splits.train.num_documents in ((1,) if damage == "no footer" else range(2, 302))
    (line,) = (splits.train.folder / "bad_lines.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == str(path)
    with pytest.raises(ValueError, match=r"b\.parquet:\d+: unreadable_file"):
        prepare(tmp_path, str(path), strict=True)
