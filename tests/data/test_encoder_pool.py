"""Chunks come out in order and alike however they are encoded: by threads that share one encoder, or by processes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.data import tiny
from tp_dflash.config.data import DataConfig
from tp_dflash.data import encoder_pool
from tp_dflash.data.encoder_pool import EncoderPool, default_num_workers
from tp_dflash.data.reader import RecordChunk
from tp_dflash.data.record_encoder import EncodedChunk, RecordEncoder
from tp_dflash.data.record_file import RecordFile


def make_encoder() -> RecordEncoder:
    return RecordEncoder(tiny.make_tokenizer(tiny.QWEN3), DataConfig(train=["unused.jsonl"], max_length=200))


def chunks(count: int) -> Iterator[RecordChunk]:
    """Conversations of ever other shapes, plain text, and a bad line in each."""
    for number in range(count):
        turns = [("user", f"question {number}"), ("assistant", "<think>hm</think>" * (number % 2) + f"answer {number}")]
        messages = [{"role": role, "content": " " * (number % 7) + text} for role, text in turns * (1 + number % 3)]
        lines = [json.dumps(record).encode() for record in ({"messages": messages}, {"text": f"text {number}"})]
        yield RecordChunk(0, 1 + 3 * number, None, [*lines, b"broken"], [], 0.0)


def content(chunk: EncodedChunk) -> list[Any]:
    return [
        chunk.tokens.tolist(), chunk.loss_mask.tolist(), chunk.lengths.tolist(), chunk.records.tolist(), chunk.problems,
        chunk.end_of_turn,
    ]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_results_and_their_order_are_those_of_one_after_the_other(num_workers: int) -> None:
    alone = make_encoder()
    expected = [(chunk.first, content(alone.encode(chunk.payloads()))) for chunk in chunks(40)]
    with EncoderPool(make_encoder(), num_workers) as pool:
        found = [(chunk.first, content(encoded)) for chunk, encoded in pool.encode(chunks(40))]
    assert found == expected


class Forgetful(dict[Any, Any]):
    """What a memory looks like to a thread whose neighbours empty it at any moment: after any access it may be empty."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = random.Random(0)
        self.times_emptied = 0

    def _forget(self) -> None:
        if self and self._drawn.random() < 0.3:
            self.times_emptied += 1
            self.clear()

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._forget()
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self._forget()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._forget()


def test_neighbours_may_empty_what_is_remembered_at_any_moment() -> None:
    alone, disturbed = make_encoder(), make_encoder()
    for encoder in (alone, disturbed):
        encoder.encode(next(chunks(1)).payloads())
    assert disturbed._renderer is not None
    shapes, pieces = Forgetful(), Forgetful()
    disturbed._renderer._shapes, disturbed._encoder._short = shapes, pieces
    for chunk in chunks(40):
        assert content(disturbed.encode(chunk.payloads())) == content(alone.encode(chunk.payloads()))
    assert shapes.times_emptied > 5
    assert pieces.times_emptied > 5


def test_many_threads_with_small_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tp_dflash.data.chat_renderer._REMEMBERED_SHAPES", 2)
    monkeypatch.setattr("tp_dflash.data.text_encoder._REMEMBERED", 3)
    monkeypatch.setattr(encoder_pool, "_THREADS", 6)
    alone = make_encoder()
    expected = [content(alone.encode(chunk.payloads())) for chunk in chunks(60)]
    with EncoderPool(make_encoder(), 0) as pool:
        found = [content(encoded) for _, encoded in pool.encode(chunks(60))]
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_where_a_chunk_is_encoded_is_raised_to_the_caller(num_workers: int) -> None:
    wordless = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    encoder = RecordEncoder(tiny.make_tokenizer(wordless), DataConfig(train=["unused.jsonl"]))
    with EncoderPool(encoder, num_workers) as pool, pytest.raises(ValueError, match="prints the assistant's words"):
        list(pool.encode(chunks(30)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_more_is_read_than_can_be_under_way(num_workers: int) -> None:
    read = itertools.count()
    endless = (chunk for chunk in chunks(100_000) if next(read) >= 0)
    with EncoderPool(make_encoder(), num_workers) as pool:
        encoded = pool.encode(endless)
        for _ in range(5):
            next(encoded)
    assert next(read) <= 5 + 3 * max(2, num_workers)


def test_processes_only_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 20, 1 << 20])
    monkeypatch.setattr(RecordFile, "num_bytes", property(lambda _: next(sizes)))
    files = [RecordFile("a.jsonl", "jsonl", 1.0)]
    for cores, expected_workers in ((2, 0), (64, 16), (64, 0)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert default_num_workers(files) == expected_workers


def test_nothing_to_encode() -> None:
    with EncoderPool(make_encoder(), 0) as pool:
        assert list(pool.encode(iter([]))) == []
