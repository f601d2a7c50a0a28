"""Supervised text is exactly what the assistant wrote, and the token that ends its turn, whatever the template."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.data import tiny
from tp_dflash.config.data import DataConfig, TemplateConfig
from tp_dflash.data.bad_record import DropReason
from tp_dflash.data.record_encoder import EncodedChunk, RecordEncoder


def encode(tokenizer: PreTrainedTokenizerFast, record: dict[str, Any], **template: Any) -> EncodedChunk:
    config = DataConfig(train=["unused.jsonl"], template=TemplateConfig(**template))
    return RecordEncoder(tokenizer, config).encode([record])


def supervised_runs(tokenizer: PreTrainedTokenizerFast, chunk: EncodedChunk) -> list[str]:
    """Each run of supervised tokens, decoded."""
    assert chunk.problems == []
    runs: list[list[int]] = []
    previous = False
    for token, supervised in zip(chunk.tokens.tolist(), chunk.loss_mask.tolist(), strict=True):
        if supervised and not previous:
            runs.append([])
        if supervised:
            runs[-1].append(token)
        previous = supervised
    return [tokenizer.decode(run, skip_special_tokens=False) for run in runs]


def chat(*contents: str, system: str | None = None) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return {"messages": [{"role": "system", "content": system}, *turns] if system else turns}


CONTENTS = {
    "one turn": ["hi", "ok"],
    "two turns": ["hi", "ok", "what is two plus two?", "four"],
    "three turns": ["hi", "ok", "bye?", "fine", "and now", "good day"],
    "answer repeats the question": ["hello hello", "hello", "hello", "hello hello"],
    "answer holds a start tag": ["hi", "write <|im_start|>assistant\nok<|im_end|> and go on", "hm", "fine"],
    "question holds a whole turn": ["hi<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n", "ok"],
    "question holds other tags": ["[/INST] no</s><end_of_turn>\n<start_of_turn>model\nno<|eot_id|>", "ok"],
    "answer holds every end": ["hi", "a<|im_end|>b<|eot_id|>c</s>d<end_of_turn>e", "ok?", "fine"],
    "several lines": ["hi", "first\n\nsecond line\n\tthird", "x", "1. one\n2. two"],
    "other scripts": ["你好", "很好，谢谢 🙂", "ça va?", "où est-ce"],
    "looks like json": ['{"a": 1}', '{"b": [1, 2]}'],
}


@pytest.mark.parametrize("style", tiny.TEMPLATES)
@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS.keys())
def test_supervised_text_is_what_the_assistant_wrote(style: str, contents: list[str]) -> None:
    template, bos, eos = tiny.TEMPLATES[style]
    tokenizer = tiny.make_tokenizer(template, bos, eos)
    chunk = encode(tokenizer, chat(*contents))
    expected_runs = [content + eos for content in contents[1::2]]
    blank = " " if style == "mistral" else ""
    runs = supervised_runs(tokenizer, chunk)
    assert [run.removeprefix(blank) for run in runs] == expected_runs
    expected_text = tokenizer.apply_chat_template(chat(*contents)["messages"], tokenize=False)
    assert tokenizer.decode(chunk.tokens.tolist()) == expected_text


FRAGMENTS = [
    "ok", "hi", " ", "\n", "\n\n", "\t", "  two", "12", "'s", "\\n", "ü", "🙂", "你", "assistant\n", "user\n", "{{ x }}", "{% if %}",
    "<tool_call>", *tiny.SPECIAL_TOKENS,
]  # fmt: skip


@pytest.mark.parametrize("style", tiny.TEMPLATES)
def test_random_words_and_tags(style: str) -> None:
    template, bos, eos = tiny.TEMPLATES[style]
    tokenizer, drawn = tiny.make_tokenizer(template, bos, eos), random.Random(style)
    encoder = RecordEncoder(tokenizer, DataConfig(train=["unused.jsonl"]))
    for _ in range(150):
        contents = ["".join(drawn.choices(FRAGMENTS, k=drawn.randint(1, 6))) for _ in range(drawn.choice([2, 2, 4, 6]))]
        chunk = encoder.encode([chat(*contents)])
        answers = contents[1::2]
        if not all(map(str.strip, answers)):
            assert [reason for _, reason, _ in chunk.problems] == [DropReason.EMPTY_ASSISTANT_TURN]
            continue
        runs = supervised_runs(tokenizer, chunk)
        if style in ("llama3", "gemma"):
            answers = [answer.strip() for answer in answers]
        if style == "qwen3":
            answers[-1], runs[-1] = answers[-1].lstrip("\n"), runs[-1].lstrip("\n")
        blanks = (" ", "") if style == "mistral" else ("",)
        assert len(runs) == len(answers)
        for run, answer in zip(runs, answers, strict=True):
            assert run in [blank + answer + eos for blank in blanks]
        expected_text = tokenizer.apply_chat_template(chat(*contents)["messages"], tokenize=False)
        assert tokenizer.decode(chunk.tokens.tolist()) == expected_text


@pytest.mark.parametrize("style", tiny.TEMPLATES)
def test_tokens_before_an_answer_are_those_a_server_sees(style: str) -> None:
    template, bos, eos = tiny.TEMPLATES[style]
    tokenizer = tiny.make_tokenizer(template, bos, eos)
    chunk = encode(tokenizer, chat("what is two plus two?", "\nfour"), thinking=False)
    first = chunk.loss_mask.tolist().index(True)
    expected_prompt = tokenizer.apply_chat_template(
        chat("what is two plus two?")["messages"],
        tokenize=True,
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    assert chunk.tokens.tolist()[: len(expected_prompt)] == expected_prompt
    assert first - len(expected_prompt) in (0, 1)


@pytest.mark.parametrize("style", tiny.TEMPLATES)
def test_tokenizers_that_mark_the_start_of_a_text_are_masked_as_well(style: str) -> None:
    template, bos, eos = tiny.TEMPLATES[style]
    tokenizer = tiny.make_tokenizer(template, bos, eos, sentencepiece_style=True)
    contents = ["hi", "ok", "what is two plus two", "good day"]
    chunk = encode(tokenizer, chat(*contents))
    runs = supervised_runs(tokenizer, chunk)
    assert [run.strip() for run in runs] == ["ok" + eos, "good day" + eos]
    expected_ids = tokenizer.apply_chat_template(chat(*contents)["messages"], tokenize=True, return_dict=False)
    assert chunk.tokens.tolist() == expected_ids


def test_a_turn_edge_inside_a_token_is_an_error_not_a_guess() -> None:
    template = "{% for m in messages %}{{ m['role'] + 'x' + m['content'] + 'x' }}{% endfor %}"
    tokenizer = tiny.make_tokenizer(template, sentencepiece_style=True)
    tokenizer.backend_tokenizer.add_tokens([AddedToken("xok", normalized=False)])
    chunk = encode(tokenizer, chat("hi", "ok"))
    assert [reason for _, reason, _ in chunk.problems] == [DropReason.MASK_NOT_EXACT]


@pytest.mark.parametrize("style", ["chatml", "llama3", "qwen3", "mistral"])
def test_a_system_turn_is_context(style: str) -> None:
    template, bos, eos = tiny.TEMPLATES[style]
    tokenizer = tiny.make_tokenizer(template, bos, eos)
    chunk = encode(tokenizer, chat("hi", "ok", system="You are helpful."))
    assert [run.strip() for run in supervised_runs(tokenizer, chunk)] == ["ok" + eos]
    assert "You are helpful." in tokenizer.decode(chunk.tokens.tolist())


def test_blanks_around_an_answer_are_supervised_where_the_template_keeps_them() -> None:
    tokenizer = tiny.make_tokenizer(tiny.CHATML)
    assert supervised_runs(tokenizer, encode(tokenizer, chat("hi", "\n ok \n"))) == ["\n ok \n<|im_end|>"]
    trimming = tiny.make_tokenizer(tiny.LLAMA3, "<|begin_of_text|>", "<|eot_id|>")
    assert supervised_runs(trimming, encode(trimming, chat("hi", "\n ok \n"))) == ["ok<|eot_id|>"]


class TestReasoning:
    tokenizer = tiny.make_tokenizer(tiny.QWEN3)

    def runs(self, record: dict[str, Any], **template: Any) -> list[str]:
        return supervised_runs(self.tokenizer, encode(self.tokenizer, record, **template))

    def test_last_reasoning_is_supervised_earlier_reasoning_is_deleted_by_the_template(self) -> None:
        record = chat("hi", "<think>\nfirst\n</think>\n\nok", "and?", "<think>\nsecond\n</think>\n\nfine")
        expected_runs = ["ok<|im_end|>", "<think>\nsecond\n</think>\n\nfine<|im_end|>"]
        assert self.runs(record) == expected_runs
        assert self.runs(record, thinking=True) == expected_runs

    def test_reasoning_in_its_own_field(self) -> None:
        record = chat("hi", "ok")
        record["messages"][1]["reasoning_content"] = "\nlet me see\n"
        assert self.runs(record) == ["<think>\nlet me see\n</think>\n\nok<|im_end|>"]

    @pytest.mark.parametrize("field", ["reasoning", "thinking", "reasoning_content"])
    def test_other_names_of_the_field(self, field: str) -> None:
        record = chat("hi", "ok")
        record["messages"][1][field] = "hm"
        assert self.runs(record) == ["<think>\nhm\n</think>\n\nok<|im_end|>"]

    def test_an_empty_block_that_only_the_template_writes_is_not_supervised(self) -> None:
        for thinking in (None, True, False):
            chunk = encode(self.tokenizer, chat("hi", "ok"), thinking=thinking)
            assert supervised_runs(self.tokenizer, chunk) == ["ok<|im_end|>"]
            assert "<think>\n\n</think>\n\nok" in self.tokenizer.decode(chunk.tokens.tolist())

    def test_an_empty_block_that_the_assistant_wrote_is(self) -> None:
        expected_run = "<think>\n\n</think>\n\nok<|im_end|>"
        assert self.runs(chat("hi", "<think>\n\n</think>\n\nok"), thinking=True) == [expected_run]

    def test_thinking_off_leaves_reasoning_out(self) -> None:
        record = chat("hi", "<think>\nfirst\n</think>\n\nok", "and?", "<think>\nsecond\n</think>\n\nfine")
        chunk = encode(self.tokenizer, record, thinking=False)
        assert supervised_runs(self.tokenizer, chunk) == ["ok<|im_end|>", "fine<|im_end|>"]
        assert "second" not in self.tokenizer.decode(chunk.tokens.tolist())

    def test_a_record_may_say_it_itself(self) -> None:
        record = chat("hi", "<think>\nsecond\n</think>\n\nfine") | {"chat_template_kwargs": {"enable_thinking": False}}
        assert self.runs(record, thinking=True) == ["fine<|im_end|>"]

    def test_a_template_that_ignores_reasoning_prints_the_tags_as_words(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.CHATML)
        chunk = encode(tokenizer, chat("hi", "<think>a</think>b", "x", "y<think>"))
        assert supervised_runs(tokenizer, chunk) == ["<think>a</think>b<|im_end|>", "y<think><|im_end|>"]

    def test_channels(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.HARMONY, "", "<|return|>")
        record = chat("hi", "ok", "and?", "fine")
        record["messages"][3]["reasoning"] = "hm"
        first, last = supervised_runs(tokenizer, encode(tokenizer, record))
        assert first == "ok<|end|>"
        expected_last = (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>fine<|return|>"
        )
        assert last == expected_last


CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn<|im_end|>"}'}}


class TestTools:
    tokenizer = tiny.make_tokenizer(tiny.QWEN3)
    printed_call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn<|im_end|>"}}\n</tool_call>'

    def record(self, content: str | None) -> dict[str, Any]:
        return {
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
            "messages": [
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": content, "tool_calls": [CALL]},
                {"role": "tool", "content": "rain", "tool_call_id": "1", "name": "weather"},
                {"role": "assistant", "content": "It rains."},
            ],
        }

    @pytest.mark.parametrize("content", [None, "", "Let me look."])
    def test_calls_are_supervised_and_results_are_not(self, content: str | None) -> None:
        chunk = encode(self.tokenizer, self.record(content))
        lead = f"{content}\n" if content else ""
        expected_runs = [f"{lead}{self.printed_call}<|im_end|>", "It rains.<|im_end|>"]
        runs = supervised_runs(self.tokenizer, chunk)
        # After a question the template opens an empty reasoning block in front of a final answer.
        assert runs == expected_runs

    def test_a_template_that_leaves_calls_out_drops_what_is_not_all_of_an_answer(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.CHATML)
        for content in (None, "Let me look."):
            ((_, reason, detail),) = encode(tokenizer, self.record(content)).problems
            assert reason == DropReason.MASK_NOT_EXACT
            assert "leaves out the tool calls of message 2" in detail
        context_only = self.record("Let me look.")
        context_only["messages"][1]["weight"] = 0
        assert supervised_runs(tokenizer, encode(tokenizer, context_only)) == ["It rains.<|im_end|>"]

    def test_sharegpt_function_calls(self) -> None:
        record = {
            "conversations": [
                {"from": "human", "value": "weather?"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Bonn<|im_end|>"}}'},
                {"from": "observation", "value": "rain"},
                {"from": "gpt", "value": "It rains."},
            ]
        }
        runs = supervised_runs(self.tokenizer, encode(self.tokenizer, record))
        assert runs == [f"{self.printed_call}<|im_end|>", "It rains.<|im_end|>"]


class TestEndOfTurn:
    def test_a_token_that_opens_the_next_turn_is_no_end(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.GLM, "", "<|user|>")
        assert supervised_runs(tokenizer, encode(tokenizer, chat("hi", "ok", "hm", "fine"))) == ["ok", "fine"]

    def test_unless_the_configuration_says_so(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.GLM, "", "<|user|>")
        chunk = encode(tokenizer, chat("hi", "ok", "hm", "fine"), end_tokens=["<|user|>"])
        assert supervised_runs(tokenizer, chunk) == ["ok<|user|>", "fine"]

    def test_an_end_in_plain_words(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.PLAIN_WORDS)
        runs = supervised_runs(tokenizer, encode(tokenizer, chat("hi", "ok", "hm", "fine")))
        assert [run.strip() for run in runs] == ["ok\n### End", "fine\n### End"]

    def test_a_doubled_bos_is_reduced_to_one(self) -> None:
        doubled = "{{ bos_token }}" + tiny.LLAMA3
        tokenizer = tiny.make_tokenizer(doubled, "<|begin_of_text|>", "<|eot_id|>", adds_bos=True)
        chunk = encode(tokenizer, chat("hi", "ok"))
        assert supervised_runs(tokenizer, chunk) == ["ok<|eot_id|>"]
        assert chunk.tokens.tolist().count(tokenizer.bos_token_id) == 1
        text = encode(tokenizer, {"text": "<|begin_of_text|>hello"})
        assert text.tokens.tolist().count(tokenizer.bos_token_id) == 1
        assert supervised_runs(tokenizer, text) == ["hello"]


class TestTemplatesThatCannotBeMasked:
    def test_one_that_leaves_the_answer_out_is_an_error_before_training(self) -> None:
        tokenizer = tiny.make_tokenizer(
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
        )
        with pytest.raises(ValueError, match="prints the assistant's words"):
            encode(tokenizer, chat("hi", "ok"))

    def test_none_at_all(self) -> None:
        with pytest.raises(ValueError, match="data.template.chat_template"):
            encode(tiny.make_tokenizer(None), chat("hi", "ok"))

    @pytest.mark.parametrize(
        ("expression", "contents"),
        [
            ("m['content'] | upper", ["hi", "ok"]),
            ("m['content'] | replace('o', '0')", ["hi", "ok"]),
            ("m['content'] + m['content']", ["hi", "ok"]),
            ("m['content'][:1]", ["hi", "ok"]),
        ],
    )
    def test_one_that_changes_the_words(self, expression: str, contents: list[str]) -> None:
        template = tiny.CHATML.replace("m['content']", f"({expression})")
        tokenizer = tiny.make_tokenizer(template)
        try:
            chunk = encode(tokenizer, chat(*contents))
        except ValueError as error:
            assert "words" in str(error)  # noqa: PT017
            return
        assert [reason for _, reason, _ in chunk.problems] == [DropReason.MASK_NOT_EXACT]

    def test_one_that_refuses_a_conversation(self) -> None:
        tokenizer = tiny.make_tokenizer(tiny.GEMMA, "<bos>", "<end_of_turn>")
        ((_, reason, detail),) = encode(tokenizer, chat("hi", "ok", system="x")).problems
        assert reason == DropReason.TEMPLATE_ERROR
        assert "System role not supported" in detail


def test_weights_and_the_last_turn_only() -> None:
    tokenizer = tiny.make_tokenizer()
    record = chat("hi", "ok", "hm", "fine")
    assert supervised_runs(tokenizer, encode(tokenizer, record, turns="last")) == ["fine<|im_end|>"]
    record["messages"][1]["weight"] = 0
    assert supervised_runs(tokenizer, encode(tokenizer, record)) == ["fine<|im_end|>"]
    record["messages"][3]["train"] = False
    assert [reason for _, reason, _ in encode(tokenizer, record).problems] == [DropReason.NOTHING_SUPERVISED]


def test_an_answer_that_was_cut_off_does_not_teach_to_stop() -> None:
    tokenizer = tiny.make_tokenizer()
    record = chat("hi", "ok", "hm", "fine and")
    record["messages"][3]["finish_reason"] = "length"
    assert supervised_runs(tokenizer, encode(tokenizer, record)) == ["ok<|im_end|>", "fine and"]


def test_a_template_that_acts_on_what_users_say() -> None:
    template = tiny.CHATML.replace(
        "m['content'] +", "(m['content'] | upper if m['role'] == 'user' else m['content']) +"
    )
    tokenizer = tiny.make_tokenizer(template)
    chunk = encode(tokenizer, chat("hi there", "ok"))
    assert supervised_runs(tokenizer, chunk) == ["ok<|im_end|>"]
    assert "HI THERE" in tokenizer.decode(chunk.tokens.tolist())


def test_turns_after_the_last_answer_are_left_out() -> None:
    tokenizer = tiny.make_tokenizer(tiny.QWEN3)
    record = chat("hi", "<think>\nhm\n</think>\n\nok", "thanks")
    assert supervised_runs(tokenizer, encode(tokenizer, record)) == ["<think>\nhm\n</think>\n\nok<|im_end|>"]
