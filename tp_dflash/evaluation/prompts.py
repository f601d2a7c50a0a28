"""Prompts as the target is asked them: token ids that end where the answer begins.

In: JSONL files and a tokenizer. Out: named prompt sets. Lines that cannot be asked are an error by file and line: an
evaluation that quietly leaves prompts out compares with nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from tp_dflash.config.data import TemplateConfig
from tp_dflash.config.evaluation import PromptSetConfig
from tp_dflash.data.bad_record import BadRecordError
from tp_dflash.data.chat_renderer import read_chat_template
from tp_dflash.data.messages import read_message


@dataclass(frozen=True)
class PromptSet:
    """Prompts under one name; each is a list of token ids, at least one long."""

    name: str
    prompts: tuple[tuple[int, ...], ...]


def read_prompt_set(
    config: PromptSetConfig, tokenizer: PreTrainedTokenizerBase, template: TemplateConfig | None = None
) -> PromptSet:
    """Read a set. ``messages`` are cut behind the last turn that is not the assistant's; ``prompt`` is one user turn, or
    bare text for a tokenizer without a chat template. template: the options that the drafter was trained with.
    """
    template = TemplateConfig() if template is None else template
    path = Path(config.path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(
            f"{config.path}: expected a JSONL file of prompts, got {error.strerror}; correct evaluation.prompts"
        ) from None
    prompts: list[tuple[int, ...]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and (config.limit is None or len(prompts) < config.limit):
            prompts.append(_read_line(line, f"{config.path}, line {number}", tokenizer, template))
    if not prompts:
        raise ValueError(f"{config.path}: expected at least one prompt, got none; correct evaluation.prompts")
    return PromptSet(config.name, tuple(prompts))


def _read_line(line: str, where: str, tokenizer: PreTrainedTokenizerBase, template: TemplateConfig) -> tuple[int, ...]:
    remedy = "correct the line or remove it"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: expected JSON, got {error}; {remedy}") from None
    try:
        ids = _ids(record, tokenizer, template)
    except BadRecordError as error:
        raise ValueError(f"{where}: expected a prompt, got {error.detail}; {remedy}") from None
    except TemplateError as error:
        raise ValueError(f"{where}: expected turns that the chat template takes, got: {error}; {remedy}") from None
    if not ids:
        raise ValueError(
            f'{where}: expected {{"messages": [...]}} or {{"prompt": "..."}} with something asked, got {line[:80]!r}; {remedy}'
        )
    return tuple(ids)


def _ids(record: Any, tokenizer: PreTrainedTokenizerBase, template: TemplateConfig) -> list[int]:
    """Token ids; none for a record that asks nothing."""
    asked = record if isinstance(record, dict) else {}
    messages, prompt = asked.get("messages"), asked.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        if not tokenizer.chat_template and template.chat_template is None:
            return list(tokenizer(prompt)["input_ids"])
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list):
        return []
    read = [read_message(message, number)[0] for number, message in enumerate(messages, start=1)]
    while read and read[-1]["role"] == "assistant":
        read.pop()
    if not any(message["role"] == "user" for message in read):
        return []
    options: dict[str, Any] = dict(template.arguments)
    if template.thinking is not None:
        options = {"enable_thinking": template.thinking, "thinking": template.thinking} | options
    if isinstance(asked.get("chat_template_kwargs"), dict):
        options |= asked["chat_template_kwargs"]
    text = tokenizer.apply_chat_template(
        read,
        tools=asked.get("tools"),
        chat_template=read_chat_template(tokenizer, template),
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])
