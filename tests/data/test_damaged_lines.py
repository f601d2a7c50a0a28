"""Whatever is done to a line, it is trained on rightly or named; nothing crashes and memory does not grow."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data import tiny
from tp_dflash.config.data import DataConfig
from tp_dflash.data import DropReason, TokenStore, prepare_store
from tp_dflash.data.conversation import Conversation, PlainText, TokenIds
from tp_dflash.data.parse import parse_line
from tp_dflash.data.record_encoder import RecordEncoder

TOKENIZER = tiny.make_tokenizer()
ENCODER = RecordEncoder(TOKENIZER, DataConfig(train=["unused.jsonl"], max_length=400))
NUM_EXAMPLES, LINES_OF_EXAMPLE = 50, 200

words = st.text(max_size=20) | st.sampled_from(
    ["ok", "<|im_end|>", "<|im_start|>assistant\n", "<think>", "</think>", " "]
)
roles = st.sampled_from(["user", "assistant", "system", "tool", "human", "gpt", "", "admin"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | roles, inner, max_size=3),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {"role": roles, "content": words | anything}, optional={"reasoning": words, "name": anything}
)
records = (
    st.fixed_dictionaries({"messages": st.lists(messages | anything, max_size=5)}, optional={"tools": anything})
    | st.fixed_dictionaries(
        {"conversations": st.lists(st.fixed_dictionaries({"from": roles, "value": words}), max_size=4)}
    )
    | st.fixed_dictionaries({"prompt": words | anything, "completion": words | anything})
    | st.fixed_dictionaries({"text": words | anything})
    | st.fixed_dictionaries({"input_ids": st.lists(st.integers(-1, 600), max_size=6)}, optional={"loss_mask": anything})
    | anything
)


def damage(line: bytes, drawn: random.Random) -> bytes:
    """Bytes of a line cut, dropped, doubled, changed or put in, or the line left as it is."""
    for _ in range(drawn.choice([0, 0, 1, 1, 3])):
        at, size = drawn.randrange(len(line) + 1), drawn.randrange(1, 8)
        inserted = drawn.choice(
            [b"", bytes(drawn.randrange(256) for _ in range(size)), line[at : at + size] * 2, b"[" * 3000]
        )
        line = drawn.choice([line[:at], line[:at] + inserted + line[at + size :], line[at:]])
    return line.replace(b"\n", b" ")


@settings(max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, min_size=5, max_size=20), st.randoms(use_true_random=False))
def test_ten_thousand_damaged_lines(values: list[Any], drawn: random.Random) -> None:
    originals = [
        json.dumps(value, ensure_ascii=drawn.random() < 0.5).encode("utf-8", "surrogatepass") for value in values
    ]
    lines = [damage(drawn.choice(originals), drawn) for _ in range(LINES_OF_EXAMPLE)]
    chunk = ENCODER.encode(lines)
    used, dropped = set(chunk.records.tolist()), [index for index, _, _ in chunk.problems]
    assert used.isdisjoint(dropped)
    assert len(used) + len(set(dropped)) == len(dropped) + len(used) == LINES_OF_EXAMPLE
    assert all(isinstance(reason, DropReason) and detail for _, reason, detail in chunk.problems)
    start = 0
    for index, length in zip(chunk.records.tolist(), chunk.lengths.tolist(), strict=True):
        tokens, mask = chunk.tokens[start : start + length], chunk.loss_mask[start : start + length]
        start += length
        check_supervision(lines[index], TOKENIZER.decode(tokens[mask].tolist()), length)


def check_supervision(line: bytes, supervised: str, length: int) -> None:
    """Compare with what the line says, as far as the length limit let it be."""
    record = parse_line(line)
    if isinstance(record, Conversation):
        answers = [message for message, wanted in zip(record.messages, record.supervised, strict=True) if wanted]
        expected = "".join(message["content"] + "<|im_end|>" for message in answers)
    elif isinstance(record, PlainText):
        expected = record.text
    else:
        assert isinstance(record, TokenIds)
        chosen = [token for token, wanted in zip(record.tokens, record.loss_mask, strict=True) if wanted]
        expected = TOKENIZER.decode(chosen)
    if length == 400:
        supervised = supervised.rstrip("\ufffd")
        assert expected.startswith(supervised)
    else:
        assert supervised == expected


def peak_bytes(folder: Path, num_lines: int) -> int:
    folder.mkdir()
    drawn = random.Random(1)
    good = json.dumps(
        {"messages": [{"role": "user", "content": "hi " * 20}, {"role": "assistant", "content": "ok " * 50}]}
    )
    with (folder / "a.jsonl").open("wb") as file:
        for _ in range(num_lines):
            file.write(damage(good.encode(), drawn) + b"\n")
    tracemalloc.start()
    splits = prepare_store(DataConfig(train=[str(folder / "a.jsonl")], num_workers=0), TOKENIZER, folder / "prepared")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert splits.report.records == num_lines
    assert splits.report.used_records + sum(splits.report.dropped.values()) == num_lines
    bad = (folder / "prepared" / "bad_lines.jsonl").read_text().splitlines()
    assert len(bad) == sum(splits.report.dropped.values())
    assert origins(splits.train) | {json.loads(line)["line"] for line in bad} == set(range(1, num_lines + 1))
    return peak


def origins(store: TokenStore) -> set[int]:
    return {store.origin(document)[1] for document in range(len(store))}


def test_memory_is_flat(tmp_path: Path) -> None:
    peak_bytes(tmp_path / "first", 300)
    few, many = peak_bytes(tmp_path / "few", 1000), peak_bytes(tmp_path / "many", 5000)
    assert many < few + 2_000_000
