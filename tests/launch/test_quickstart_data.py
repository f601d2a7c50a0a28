"""The quickstart's text: what the committed files hold, and the rules by which answers are kept and split."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from launch import quickstart_data as script
from launch.quickstart_prompts import PROMPTS_PER_KIND, prompts

DATA = Path(__file__).resolve().parents[2] / "launch" / "data" / "quickstart"
MASK_TOKEN_ID = 16


def _read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def _sides(records: list[dict[str, Any]], side: int) -> list[str]:
    return [record["messages"][side]["content"] for record in records]


def _answer(kind: str, text: str) -> script.Answer:
    return script.Answer(kind, f"say {text}", [1], text, True, [0.0], [1.0])


def test_prompts_are_distinct_and_the_same_every_time() -> None:
    every = [prompt for texts in prompts().values() for prompt in texts]
    assert len(set(every)) == len(every)
    assert prompts() == prompts()
    assert all(2 * script.HELD_OUT_PER_KIND < len(texts) <= PROMPTS_PER_KIND for texts in prompts().values())


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_records_are_conversations_from_the_templates(name: str) -> None:
    every = {prompt for texts in prompts().values() for prompt in texts}
    for record in _read(name):
        assert [turn["role"] for turn in record["messages"]] == ["user", "assistant"]
        assert record["messages"][0]["content"] in every
        assert record["messages"][1]["content"].strip()
        assert record["finish"] in ("stop", "length")


def test_train_and_heldout_share_no_prompt_and_no_answer() -> None:
    train, held_out = _read("train"), _read("heldout")
    assert 500 <= len(train) <= 700
    assert 30 <= len(held_out) <= 50
    for side in (0, 1):
        texts = _sides(train, side) + _sides(held_out, side)
        assert len(set(texts)) == len(texts)


def test_any_beginning_of_heldout_is_a_mixture_of_kinds() -> None:
    kind_of = {prompt: kind for kind, texts in prompts().items() for prompt in texts}
    kinds = [kind_of[prompt] for prompt in _sides(_read("heldout"), 0)]
    assert len(kinds) == script.HELD_OUT_PER_KIND * len(prompts())
    for start in range(0, len(kinds), len(prompts())):
        assert set(kinds[start : start + len(prompts())]) == set(prompts())


def test_the_files_are_small() -> None:
    assert all((DATA / f"{name}.jsonl").stat().st_size < 300_000 for name in ("train", "heldout"))


def test_the_mask_token_is_not_in_the_data(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    texts = [
        tokenizer.apply_chat_template(record["messages"], tokenize=False)
        for name in ("train", "heldout")
        for record in _read(name)
    ]
    used = {token for tokens in tokenizer(texts)["input_ids"] for token in tokens}
    assert MASK_TOKEN_ID not in used
    assert {1, 2} == {token for token in used if token < 17}  # of the special tokens, only those of the chat template


def test_answers_are_the_targets_own_words(smollm2: Path) -> None:
    """Padded batch against one prompt alone, committed file against a fresh answer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    finished = [record for record in _read("heldout") if record["finish"] == "stop"]
    shortest = min(finished, key=lambda record: len(record["messages"][1]["content"]))
    prompt = shortest["messages"][0]["content"]
    longer = "Please tell me in one short sentence, dear model: what is the capital of France?"
    batched, _ = script.answer(model, tokenizer, "", [prompt, longer])
    (alone,) = script.answer(model, tokenizer, "", [prompt])
    assert batched.tokens == alone.tokens
    assert alone.record() == shortest
    assert script.is_faithful(tokenizer, alone)
    assert len(alone.tokens) == len(alone.entropies) == len(alone.peaks)


def test_an_answer_that_reads_back_as_other_tokens_is_dropped(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    tokens = [tokenizer.convert_tokens_to_ids(piece) for piece in ("a", "n", "d")]
    assert not script.is_faithful(tokenizer, script.Answer("", "", tokens, "and", False, [], []))
    whole = tokenizer("and")["input_ids"]
    assert script.is_faithful(tokenizer, script.Answer("", "", whole, "and", False, [], []))
    assert script.is_faithful(tokenizer, script.Answer("", "", [*whole, 2], "and", True, [], []))
    assert not script.is_faithful(tokenizer, script.Answer("", "", [2], "", True, [], []))


def test_split_keeps_an_answer_once_and_holds_out_of_every_kind() -> None:
    answers = [_answer(kind, text) for kind in "ab" for text in ("same", *(f"{kind}{i}" for i in range(6)))]
    train, held_out = script.split(answers)
    assert [given.text for given in held_out] == ["same", "b0", "a0", "b1", "a1", "b2"]
    assert sorted(given.text for given in train) == ["a2", "a3", "a4", "a5", "b3", "b4", "b5"]
    assert script.split(answers) == (train, held_out)
