"""Answers from a model on this machine: those it gives alone, whatever batch a question is in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.data import tiny
from tests.data.regeneration.test_regenerate import read
from tp_dflash.config.data import SourceConfig
from tp_dflash.data.regeneration import AnswerFile, LocalAnswerer, Regeneration, RegenerationCounts, SamplingSettings
from tp_dflash.data.regeneration.asked import read_asked
from tp_dflash.data.regeneration.local_model import LocalModel

QUESTIONS = ["hi", "what is two plus two?", "the quick brown fox jumps over the lazy dog", "bye", "numbers and weather"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, scaled so that its choices are clear and sometimes end the answer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny.make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=200,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(40)
        model.lm_head.weight[tokenizer.eos_token_id] *= 2
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(tiny.PLAIN_ADDED_TOKENS)] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def answer_alone(folder: Path, messages: list[dict[str, str]], max_tokens: int) -> tuple[str, str]:
    """Greedy decoding of one prompt, a token at a time without a cache: words and how they ended."""
    tokenizer = tiny.make_tokenizer()
    model = LlamaForCausalLM.from_pretrained(folder, dtype="float32").eval()
    prompt = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    ids = list(prompt)
    for _ in range(max_tokens):
        with torch.inference_mode():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == tokenizer.eos_token_id:
            return tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True), "stop"
        ids.append(token)
    return tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True), "length"


def write(path: Path, records: list[Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def regenerate(
    source: str, output: Path, settings: SamplingSettings, devices: tuple[str, ...] = ("cpu",), batch_size: int = 3
) -> RegenerationCounts:
    with AnswerFile(output, settings) as file:
        answerer = LocalAnswerer(settings, devices, batch_size, "float32")
        return Regeneration([SourceConfig(path=source)], file).run(answerer)


def test_answers_do_not_depend_on_the_batch(tmp_path: Path, model_folder: Path) -> None:
    settings = SamplingSettings(str(model_folder), temperature=0, max_tokens=24)
    counts = regenerate(
        write(tmp_path / "in.jsonl", [{"prompt": text} for text in QUESTIONS]), tmp_path / "out", settings
    )
    assert counts.answered == len(QUESTIONS)
    endings = set()
    for number, record in read(tmp_path / "out").items():
        question, answer = record["messages"]
        expected_content, expected_ending = answer_alone(model_folder, [question], 24)
        assert question["content"] == QUESTIONS[number - 1]
        assert answer["content"] == expected_content
        assert answer.get("finish_reason", "stop") == expected_ending
        endings.add(expected_ending)
    assert endings == {"stop", "length"}, "the model should end some answers and not others"


def test_turns_follow_each_other(tmp_path: Path, model_folder: Path) -> None:
    settings = SamplingSettings(str(model_folder), temperature=0, max_tokens=24)
    roles = ("user", "assistant")
    turns = [[{"role": roles[index % 2], "content": "hi"} for index in range(length)] for length in (1, 3, 5)]
    regenerate(write(tmp_path / "in.jsonl", [{"messages": messages} for messages in turns]), tmp_path / "out", settings)
    for number, record in read(tmp_path / "out").items():
        messages = record["messages"]
        assert len(messages) == len(turns[number - 1]) + 1 or messages[-1].get("finish_reason") == "length"
        for index in range(1, len(messages), 2):
            expected_content, _ = answer_alone(model_folder, messages[:index], 24)
            assert messages[index]["content"] == expected_content


def test_prompts_that_leave_no_room_are_failures(tmp_path: Path, model_folder: Path) -> None:
    settings = SamplingSettings(str(model_folder), temperature=0, max_tokens=24)
    source = write(tmp_path / "in.jsonl", [{"prompt": "hi"}, {"prompt": "hi " * 300}])
    counts = regenerate(source, tmp_path / "out", settings)
    assert (counts.answered, counts.failed) == (1, 1)
    assert "leaves no room" in (tmp_path / "out.failed").read_text()


def test_sampling_is_seeded(tmp_path: Path, model_folder: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"prompt": text} for text in QUESTIONS])
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        settings = SamplingSettings(str(model_folder), temperature=1.5, top_p=0.95, top_k=50, max_tokens=16, seed=seed)
        regenerate(source, tmp_path / name, settings)
    first, again, other = (
        {number: record["messages"] for number, record in read(tmp_path / name).items()} for name in ("a", "b", "c")
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("batch_size", [1, 4])
def test_several_answers_differ_and_are_seeded(tmp_path: Path, model_folder: Path, batch_size: int) -> None:
    source = write(tmp_path / "in.jsonl", [{"prompt": text} for text in QUESTIONS[:3]])
    settings = SamplingSettings(str(model_folder), temperature=1.5, max_tokens=12, seed=1)
    found = []
    for name in ("a", "b"):
        with AnswerFile(tmp_path / name, settings) as file:
            answerer = LocalAnswerer(settings, ("cpu",), batch_size, "float32")
            counts = Regeneration([SourceConfig(path=source)], file, answers=4).run(answerer)
        assert counts.answered + counts.failed == 12
        lines = map(json.loads, (tmp_path / name).read_text().splitlines())
        found.append({(line["id"], line["answer"]): line["messages"][-1]["content"] for line in lines})
    assert found[0] == found[1]
    assert len(found[0]) == counts.answered >= 9
    for record in (1, 2, 3):
        texts = [text for (number, _), text in found[0].items() if number == record]
        assert len(set(texts)) == len(texts)


def test_several_devices_share_the_work(tmp_path: Path, model_folder: Path) -> None:
    settings = SamplingSettings(str(model_folder), temperature=0, max_tokens=8)
    source = write(tmp_path / "in.jsonl", [{"prompt": text} for text in QUESTIONS])
    regenerate(source, tmp_path / "one", settings)
    counts = regenerate(source, tmp_path / "two", settings, ("cpu", "cpu"), batch_size=2)
    assert counts.answered == len(QUESTIONS)
    assert read(tmp_path / "two") == read(tmp_path / "one")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fine", ("", "fine")),
        ("<think>\nhm\n</think>\n\nfine", ("hm", "fine")),
        ("hm\n</think>\n\nfine", ("hm", "fine")),
        ("<think>\nhm", ("hm", "")),
        ("a <think> b", ("", "a <think> b")),
    ],
)
def test_reasoning_is_told_from_the_answer(text: str, expected: tuple[str, str], model_folder: Path) -> None:
    model = LocalModel(SamplingSettings(str(model_folder), max_tokens=8), "cpu", "float32")
    ids = tiny.make_tokenizer()(text, add_special_tokens=False)["input_ids"]
    answer = model._answer([*ids, tiny.make_tokenizer().eos_token_id])
    assert (answer.reasoning, answer.content) == expected
    assert answer.finish_reason == "stop"


def test_a_template_that_refuses_fails_that_conversation_only(model_folder: Path) -> None:
    model = LocalModel(SamplingSettings(str(model_folder), temperature=0, max_tokens=4), "cpu", "float32")
    model._tokenizer.chat_template = tiny.GEMMA
    system = {"role": "system", "content": "x"}
    asked = [
        read_asked({"messages": [system, {"role": "user", "content": "hi"}]}, 1, "a:1"),
        read_asked({"prompt": "hi"}, 2, "a:2"),
    ]
    (_, refused), (_, fine) = model.fill(asked)
    assert refused is not None
    assert "System role not supported" in refused
    assert fine is None or fine == "the answer is empty"


def test_a_device_is_needed() -> None:
    with pytest.raises(ValueError, match="--devices"):
        LocalAnswerer(SamplingSettings("x"), ())
