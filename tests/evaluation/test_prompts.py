"""Prompts become exactly what the target is asked; what cannot be asked is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.tokenizers import character_tokenizer
from tp_dflash.config.data import TemplateConfig
from tp_dflash.config.evaluation import PromptSetConfig
from tp_dflash.evaluation import read_prompt_set

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}-{% endif %}{% endif %}"
)


def _asked(
    folder: Path, *records: Any, tokenizer: Any = None, template: Any = None, limit: int | None = None
) -> list[str]:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    config = PromptSetConfig(name="some", path=str(path), limit=limit)
    prompts = read_prompt_set(config, tokenizer or character_tokenizer(TEMPLATE), template).prompts
    return ["".join(map(chr, prompt)) for prompt in prompts]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_answers_are_cut_off(tmp_path: Path) -> None:
    two_turns = [_turn("user", "hi"), _turn("assistant", "ok"), _turn("user", "more"), _turn("assistant", "no")]
    assert _asked(
        tmp_path,
        {"messages": two_turns},
        "",
        {"messages": [_turn("system", "be"), _turn("user", "hi")]},
        {"messages": [{"from": "human", "value": "yo"}, {"from": "gpt", "value": "x"}]},
        {"prompt": "hi"},
    ) == [
        "<user>hi</s><assistant>ok</s><user>more</s><assistant>",
        "<system>be</s><user>hi</s><assistant>",
        "<user>yo</s><assistant>",
        "<user>hi</s><assistant>",
    ]


def test_a_tokenizer_without_template_is_asked_bare_text(tmp_path: Path) -> None:
    assert _asked(tmp_path, {"prompt": "Once"}, tokenizer=character_tokenizer()) == ["Once"]


def test_the_options_of_training_apply(tmp_path: Path) -> None:
    assert _asked(tmp_path, {"prompt": "hi"}, template=TemplateConfig(thinking=False)) == ["<user>hi</s><assistant>-"]
    other = tmp_path / "other.jinja"
    other.write_text("[{{ messages[0].content }}]")
    assert _asked(tmp_path, {"prompt": "hi"}, template=TemplateConfig(chat_template=str(other))) == ["[hi]"]


def test_the_limit_takes_the_first(tmp_path: Path) -> None:
    assert _asked(tmp_path, {"prompt": "a"}, {"prompt": "b"}, "not json", limit=2) == [
        "<user>a</s><assistant>",
        "<user>b</s><assistant>",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        "not json",
        "[1]",
        {"messages": []},
        {"messages": None},
        {"messages": [_turn("assistant", "ok")]},
        {"messages": [_turn("system", "be")]},
        {"messages": [{"role": "nobody", "content": "hi"}]},
        {"messages": ["hi"]},
        {"prompt": "  "},
        {"prompt": 3},
        {"question": "hi"},
    ],
)
def test_what_cannot_be_asked_is_named_by_line(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"prompts\.jsonl, line 3: expected .*; correct the line or remove it"):
        _asked(tmp_path, {"prompt": "a"}, "", bad)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.jsonl: expected a JSONL file"):
        read_prompt_set(PromptSetConfig(name="x", path=str(tmp_path / "nothing.jsonl")), character_tokenizer(TEMPLATE))
    with pytest.raises(ValueError, match="at least one prompt"):
        _asked(tmp_path, "")
