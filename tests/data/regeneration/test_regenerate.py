"""Answers through a server that does everything wrong: none lost, none twice, none half, and the same command goes on."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.data import tiny
from tests.data.regeneration.unreliable_server import UnreliableServer
from tp_dflash.config.data import DataConfig, SourceConfig
from tp_dflash.data import prepare_store
from tp_dflash.data.regeneration import (
    AnswerFile,
    ChatServer,
    Regeneration,
    RegenerationCounts,
    RegenerationError,
    SamplingSettings,
    ServerAnswerer,
)

SETTINGS = SamplingSettings("tiny", temperature=0.7, max_tokens=64, seed=1)


def write_questions(folder: Path, count: int) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(count)))
    return path


def regenerate(
    source: Path,
    output: Path,
    server: UnreliableServer,
    settings: SamplingSettings = SETTINGS,
    *,
    timeout: float = 5.0,
    retries: int = 4,
    concurrency: int = 8,
    max_failures: int = 50,
    limit: int | None = None,
    answers: int = 1,
) -> RegenerationCounts:
    chat_server = ChatServer(server.url, settings, timeout, retries, first_pause=0.01)
    with AnswerFile(output, settings) as file:
        run = Regeneration([SourceConfig(path=str(source))], file, limit, answers)
        return run.run(ServerAnswerer(chat_server, concurrency, max_failures))


def read(output: Path) -> dict[int, dict[str, Any]]:
    """Records by number; every line is whole and none comes twice."""
    text = output.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    records = [json.loads(line) for line in text.splitlines()]
    assert len({record["id"] for record in records}) == len(records)
    return {record["id"]: record for record in records}


def expected_messages(number: int) -> list[dict[str, Any]]:
    question = f"question {number - 1}"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": f"echo: {question}"}]


PASSING_FAULTS = [
    "500", "503", "429", "408", "stall", "stall in the middle", "trickle", "hang up", "half a body", "half an answer", "not json",
    "no choices",
]  # fmt: skip


def test_faults_that_pass_lose_nothing(tmp_path: Path) -> None:
    def misbehave(question: str, attempt: int) -> str | None:
        number = int(question.split()[1])
        return PASSING_FAULTS[(number + attempt) % len(PASSING_FAULTS)] if attempt <= number % 3 else None

    count = 3 * len(PASSING_FAULTS)
    with UnreliableServer(misbehave) as server:
        counts = regenerate(
            write_questions(tmp_path, count), tmp_path / "out.jsonl", server, timeout=0.3, concurrency=32
        )
    assert (counts.records, counts.answered, counts.failed, counts.tokens) == (count, count, 0, 3 * count)
    records = read(tmp_path / "out.jsonl")
    assert {number: record["messages"] for number, record in records.items()} == {
        number: expected_messages(number) for number in range(1, count + 1)
    }
    assert not (tmp_path / "out.jsonl.failed").exists()


@pytest.mark.parametrize("fault", PASSING_FAULTS)
def test_each_fault_alone(tmp_path: Path, fault: str) -> None:
    with UnreliableServer(lambda _, attempt: fault if attempt == 1 else None) as server:
        counts = regenerate(write_questions(tmp_path, 1), tmp_path / "out.jsonl", server, timeout=0.3)
        assert len(server.requests) == 2
    assert counts.answered == 1


def test_what_stays_broken_is_listed_and_tried_again_by_the_next_run(tmp_path: Path) -> None:
    source = write_questions(tmp_path, 6)
    broken = {"question 1": "500", "question 3": "400", "question 4": "empty"}
    with UnreliableServer(lambda question, _: broken.get(question)) as server:
        counts = regenerate(source, tmp_path / "out.jsonl", server, retries=1)
        attempts = [request["messages"][-1]["content"] for request in server.requests]
    assert (counts.answered, counts.failed) == (3, 3)
    assert (attempts.count("question 1"), attempts.count("question 3"), attempts.count("question 4")) == (2, 1, 1)
    failed = [json.loads(line) for line in (tmp_path / "out.jsonl.failed").read_text().splitlines()]
    assert {entry["source"].rsplit(":", 1)[1] for entry in failed} == {"2", "4", "5"}
    with UnreliableServer() as server:
        counts = regenerate(source, tmp_path / "out.jsonl", server)
        assert len(server.requests) == 3
    assert (counts.found, counts.answered) == (3, 3)
    assert set(read(tmp_path / "out.jsonl")) == set(range(1, 7))
    assert not (tmp_path / "out.jsonl.failed").exists()


def test_never_more_requests_than_allowed(tmp_path: Path) -> None:
    with UnreliableServer(delay=0.02) as server:
        regenerate(write_questions(tmp_path, 40), tmp_path / "out.jsonl", server, concurrency=5)
    assert server.most_at_once == 5


@pytest.mark.parametrize("status", ["401", "404"])
def test_a_refusal_ends_the_run_at_once(tmp_path: Path, status: str) -> None:
    with UnreliableServer(lambda *_: status) as server, pytest.raises(RegenerationError, match=f"status {status}"):
        regenerate(write_questions(tmp_path, 100), tmp_path / "out.jsonl", server)
    assert len(server.requests) <= 8
    assert read(tmp_path / "out.jsonl") == {}


def test_a_server_that_has_gone_ends_the_run(tmp_path: Path) -> None:
    with UnreliableServer() as server:
        pass
    with pytest.raises(RegenerationError, match="10 failures in a row"):
        regenerate(write_questions(tmp_path, 100), tmp_path / "out.jsonl", server, retries=0, max_failures=10)


def test_ending_early_does_not_wait_for_the_server(tmp_path: Path) -> None:
    def interrupt(_: RegenerationCounts) -> None:
        raise KeyboardInterrupt

    source = write_questions(tmp_path, 20)
    with UnreliableServer(lambda question, _: None if question == "question 0" else "stall") as server:
        answerer = ServerAnswerer(ChatServer(server.url, SETTINGS, timeout=60), 4)
        start = time.monotonic()
        with AnswerFile(tmp_path / "out.jsonl", SETTINGS) as file, pytest.raises(KeyboardInterrupt):
            Regeneration([SourceConfig(path=str(source))], file).run(answerer, interrupt)
        assert time.monotonic() - start < 5
    assert set(read(tmp_path / "out.jsonl")) == {1}


def regenerate_at(source: Path, output: Path, url: str) -> None:
    """What a process does that is about to be killed."""
    with AnswerFile(output, SETTINGS) as file:
        Regeneration([SourceConfig(path=str(source))], file).run(ServerAnswerer(ChatServer(url, SETTINGS), 4))


def test_killed_and_started_again(tmp_path: Path) -> None:
    """Killed at an arbitrary moment; the next start finishes, and no answer is there twice or by half."""
    source, output = write_questions(tmp_path, 300), tmp_path / "out.jsonl"
    with UnreliableServer(delay=0.005) as server:
        process = multiprocessing.get_context("forkserver").Process(
            target=regenerate_at, args=(source, output, server.url), daemon=True
        )
        process.start()
        wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 50)
        process.kill()
        process.join()
        answered_before = output.read_bytes().count(b"\n")
        wait_until(lambda: server.at_once == 0)
        asked_before = len(server.requests)
        counts = regenerate(source, output, server)
    assert 50 <= answered_before < 300
    assert (counts.found, counts.answered) == (answered_before, 300 - answered_before)
    assert len(server.requests) - asked_before == 300 - answered_before
    assert {number: record["messages"] for number, record in read(output).items()} == {
        number: expected_messages(number) for number in range(1, 301)
    }


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_half_line_is_removed_and_answered_again(tmp_path: Path, cut: int) -> None:
    source, output = write_questions(tmp_path, 3), tmp_path / "out.jsonl"
    with UnreliableServer() as server:
        regenerate(source, output, server)
        os.truncate(output, output.stat().st_size - cut)
        counts = regenerate(source, output, server)
    assert (counts.found, counts.answered) == (2, 1)
    assert set(read(output)) == {1, 2, 3}


class TestGoingOn:
    def test_other_settings_are_an_error(self, tmp_path: Path) -> None:
        source = write_questions(tmp_path, 2)
        with UnreliableServer() as server:
            regenerate(source, tmp_path / "out.jsonl", server)
            with pytest.raises(ValueError, match="use the same settings to go on, or choose another output"):
                regenerate(source, tmp_path / "out.jsonl", server, SamplingSettings("tiny", temperature=0.9))

    def test_other_sources_are_an_error(self, tmp_path: Path) -> None:
        source = write_questions(tmp_path, 2)
        with UnreliableServer() as server:
            regenerate(source, tmp_path / "out.jsonl", server)
            source.write_text(json.dumps({"prompt": "something else"}))
            with pytest.raises(ValueError, match="the sources have changed"):
                regenerate(source, tmp_path / "out.jsonl", server)

    def test_a_file_that_something_else_wrote_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "out.jsonl").write_text('{"text": "precious"}\n')
        with UnreliableServer() as server, pytest.raises(ValueError, match="a line that regenerate wrote"):
            regenerate(write_questions(tmp_path, 2), tmp_path / "out.jsonl", server)
        assert (tmp_path / "out.jsonl").read_text() == '{"text": "precious"}\n'

    def test_further_records_are_added(self, tmp_path: Path) -> None:
        source = write_questions(tmp_path, 5)
        with UnreliableServer() as server:
            regenerate(source, tmp_path / "out.jsonl", server, limit=2)
            counts = regenerate(source, tmp_path / "out.jsonl", server)
        assert (counts.found, counts.answered) == (2, 3)


class TestSeveralAnswers:
    def numbers(self, output: Path) -> list[tuple[int, int]]:
        records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        return sorted((record["id"], record["answer"]) for record in records)

    def test_each_has_a_seed_of_its_own_and_a_line_of_its_own(self, tmp_path: Path) -> None:
        source, output = write_questions(tmp_path, 3), tmp_path / "out.jsonl"
        with UnreliableServer() as server:
            counts = regenerate(source, output, server, answers=4)
        assert (counts.records, counts.answered) == (3, 12)
        assert self.numbers(output) == [(record, answer) for record in (1, 2, 3) for answer in range(4)]
        asked = [(request["messages"][-1]["content"], request["seed"]) for request in server.requests]
        assert len(set(asked)) == 12
        assert {seed for question, seed in asked if question == "question 0"} == {1 + n * 1_000_003 for n in range(4)}
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert all(line["generation"] == SETTINGS.to_json() for line in lines)

    def test_more_can_be_asked_for_later(self, tmp_path: Path) -> None:
        source, output = write_questions(tmp_path, 3), tmp_path / "out.jsonl"
        with UnreliableServer() as server:
            regenerate(source, output, server)
            counts = regenerate(source, output, server, answers=3)
        assert (counts.found, counts.answered) == (3, 6)
        assert self.numbers(output) == [(record, answer) for record in (1, 2, 3) for answer in range(3)]

    def test_one_that_fails_leaves_the_others(self, tmp_path: Path) -> None:
        source, output = write_questions(tmp_path, 1), tmp_path / "out.jsonl"
        with UnreliableServer(lambda _, attempt: "400" if attempt == 2 else None) as server:
            counts = regenerate(source, output, server, answers=3, concurrency=1)
            assert (counts.answered, counts.failed) == (2, 1)
            counts = regenerate(source, output, server, answers=3)
        assert (counts.found, counts.answered) == (2, 1)
        assert self.numbers(output) == [(1, 0), (1, 1), (1, 2)]

    def test_files_from_before_there_were_several_go_on(self, tmp_path: Path) -> None:
        source, output = write_questions(tmp_path, 2), tmp_path / "out.jsonl"
        with UnreliableServer() as server:
            regenerate(source, output, server, limit=1)
            record = json.loads(output.read_text())
            del record["answer"]
            output.write_text(json.dumps(record) + "\n")
            counts = regenerate(source, output, server)
        assert (counts.found, counts.answered) == (1, 1)


class TestWhatIsAsked:
    def run(
        self, tmp_path: Path, record: dict[str, Any], **settings: Any
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        source = tmp_path / "in.jsonl"
        source.write_text(json.dumps(record))
        with UnreliableServer(self.misbehave) as server:
            counts = regenerate(source, tmp_path / "out.jsonl", server, SamplingSettings("tiny", **settings))
        assert counts.answered == 1
        return server.requests, read(tmp_path / "out.jsonl")[1]

    def misbehave(self, question: str, attempt: int) -> str | None:
        return question if question in ("reasoning", "cut off", "only reasoning") else None

    def test_settings_travel_and_are_kept(self, tmp_path: Path) -> None:
        requests, record = self.run(
            tmp_path, {"prompt": "hi"}, temperature=0.6, top_p=0.95, top_k=20, max_tokens=100, seed=3, thinking=False
        )
        expected_settings = {
            "model": "tiny", "temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_tokens": 100, "seed": 3,
        }  # fmt: skip
        assert requests[0].items() >= expected_settings.items()
        assert requests[0]["path"] == "/v1/chat/completions"
        assert requests[0]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
        assert record["generation"] == {**expected_settings, "thinking": False}
        assert record["chat_template_kwargs"]["enable_thinking"] is False

    def test_every_answer_of_a_conversation_is_written_anew(self, tmp_path: Path) -> None:
        requests, record = self.run(
            tmp_path,
            {
                "system": "Be brief.",
                "conversations": [
                    {"from": "human", "value": "one"},
                    {"from": "gpt", "value": "old"},
                    {"from": "human", "value": "two"},
                    {"from": "gpt", "value": "older"},
                ],
            },
        )
        assert [message["content"] for message in record["messages"]] == [
            "Be brief.",
            "one",
            "echo: one",
            "two",
            "echo: two",
        ]
        assert [message["content"] for message in requests[1]["messages"]] == ["Be brief.", "one", "echo: one", "two"]

    def test_calls_stay_as_context_and_greetings_too(self, tmp_path: Path) -> None:
        call = {"function": {"name": "weather", "arguments": {"city": "Bonn"}}}
        requests, record = self.run(
            tmp_path,
            {
                "tools": [{"type": "function", "function": {"name": "weather"}}],
                "messages": [
                    {"role": "assistant", "content": "Welcome"},
                    {"role": "user", "content": "weather?"},
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "content": "rain"},
                    {"role": "assistant", "content": "old"},
                ],
            },
        )
        assert [message.get("weight") for message in record["messages"]] == [0, None, 0, None, None]
        assert record["messages"][-1]["content"] == "echo: rain"
        assert len(requests) == 1
        assert requests[0]["tool_choice"] == "none"

    def test_reasoning_is_kept_but_not_shown_in_later_turns(self, tmp_path: Path) -> None:
        turns = [
            {"role": "user", "content": "reasoning"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "x"},
        ]
        requests, record = self.run(tmp_path, {"messages": turns})
        assert record["messages"][1] == {"role": "assistant", "content": "fine", "reasoning_content": "about reasoning"}
        assert requests[1]["messages"][1] == {"role": "assistant", "content": "fine"}

    def test_nothing_follows_an_answer_that_was_cut_off(self, tmp_path: Path) -> None:
        turns = [
            {"role": "user", "content": "cut off"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "y"},
        ]
        requests, record = self.run(tmp_path, {"messages": turns})
        assert len(requests) == 1
        assert record["messages"][1:] == [
            {"role": "assistant", "content": "echo: cut off and", "finish_reason": "length"}
        ]

    def test_an_answer_cut_off_while_reasoning(self, tmp_path: Path) -> None:
        _, record = self.run(tmp_path, {"prompt": "only reasoning"})
        assert record["messages"][1] == {
            "role": "assistant", "content": "", "reasoning_content": "hm", "finish_reason": "length",
        }  # fmt: skip

    def test_records_that_ask_nothing_are_listed(self, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        lines = ['{"messages": []}', "not json", '{"text": "plain"}', '{"prompt": " "}', '{"prompt": "hi"}']
        source.write_text("\n".join(lines))
        with UnreliableServer() as server:
            counts = regenerate(source, tmp_path / "out.jsonl", server)
        assert (counts.records, counts.bad, counts.answered) == (5, 4, 1)
        assert set(read(tmp_path / "out.jsonl")) == {5}

    def test_what_cannot_be_read_is_listed_too(self, tmp_path: Path) -> None:
        packed = gzip.compress(b"".join(b'{"prompt": "question %d"}\n' % number for number in range(500)))
        (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
        text = pyarrow.array([b"fine", b"half \xf0\x9f"], pyarrow.binary()).buffers()
        table = pyarrow.table({"prompt": pyarrow.Array.from_buffers(pyarrow.string(), 2, text)})
        pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        with UnreliableServer() as server:
            counts = regenerate(tmp_path, tmp_path / "answers" / "out.jsonl", server, concurrency=32)
        failed = (tmp_path / "answers" / "out.jsonl.failed").read_text()
        assert counts.bad == 2
        assert counts.answered == counts.records - 2 > 20
        assert "cut.jsonl.gz" in failed
        assert "unreadable_file" in failed
        assert "rows.parquet:2" in failed

    def test_null_fields_and_doubled_system_texts(self, tmp_path: Path) -> None:
        turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
        requests, _ = self.run(tmp_path, {"conversations": None, "system": "Be brief.", "messages": turns})
        assert requests[0]["messages"] == turns


def test_the_output_is_training_data(tmp_path: Path) -> None:
    """Prepared as it is: words of the target are supervised, the end of a cut-off answer is not taught."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "reasoning"}\n{"prompt": "cut off"}\n{"prompt": "hello"}\n')
    with UnreliableServer(lambda question, _: question if question in ("reasoning", "cut off") else None) as server:
        regenerate(source, tmp_path / "out.jsonl", server, SamplingSettings("tiny", thinking=True), concurrency=1)
    tokenizer = tiny.make_tokenizer(tiny.QWEN3)
    store = prepare_store(DataConfig(train=[str(tmp_path / "out.jsonl")]), tokenizer, tmp_path / "prepared").train
    documents = [store.document(index) for index in range(len(store))]
    assert [tokenizer.decode(document.tokens_S[document.loss_mask_S].tolist()) for document in documents] == [
        "<think>\nabout reasoning\n</think>\n\nfine<|im_end|>",
        "echo: cut off and",
        "echo: hello<|im_end|>",
    ]


def test_the_key_is_sent(tmp_path: Path) -> None:
    with UnreliableServer() as server:
        ChatServer(server.url + "/v1/", SETTINGS, api_key="secret").answer([{"role": "user", "content": "hi"}])
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.requests[0]["path"] == "/v1/chat/completions"


@pytest.mark.parametrize("url", ["", "ftp://localhost", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="--server"):
        ChatServer(url, SETTINGS)
