"""A conversation whose answers are to be written anew: its turns with holes, filled from the first to the last.

In: a record of any form that has prompts, its own answers ignored. Out: what to ask next, and in the end the record with
the new answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.messages import own_system_turn, read_message, read_text
from tp_dflash.data.parse import CONVERSATION_KEYS, read_tools

_PROMPTS = ("prompt", "instruction", "question")
# Keeps the numbers of further answers clear of those of records, in the lower 32 bits too: some generators of random
# numbers are seeded with these alone.
_ANSWER_STRIDE = (1 << 32) + 1_000_003


@dataclass(frozen=True)
class Answer:
    """One answer. finish_reason: "stop", or "length" where it was cut off at max_tokens."""

    content: str
    reasoning: str = ""
    finish_reason: str = "stop"
    num_tokens: int = 0

    def to_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.finish_reason == "length":
            message["finish_reason"] = "length"
        return message


@dataclass
class AskedConversation:
    """record_number: over all sources, from 1. where: its file and line. turns: messages, and None for answers.
    answer_index: which of several answers to the same record this will be, from 0. number: unlike any other's.

    Assistant turns that call tools, or that nobody asked for, stay as they are and are marked as context. key: names what
    is asked, so that a run that goes on notices when the sources have changed.
    """

    record_number: int
    where: str
    turns: list[dict[str, Any] | None]
    tools: Any = None
    answer_index: int = 0
    num_tokens: int = 0
    done: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number = self.record_number + self.answer_index * _ANSWER_STRIDE
        text = json.dumps([self.turns, self.tools], sort_keys=True, default=str)
        self.key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def next_prompt(self) -> list[dict[str, Any]] | None:
        """Messages that the next answer follows; None when every hole is filled."""
        while len(self.done) < len(self.turns):
            turn = self.turns[len(self.done)]
            if turn is None:
                return [_without_marks(message) for message in self.done]
            self.done.append(turn)
        return None

    def fill(self, answer: Answer) -> None:
        """Take the answer to the last prompt. After one that was cut off nothing can follow: the rest is left out."""
        self.num_tokens += answer.num_tokens
        self.done.append(answer.to_message())
        if answer.finish_reason == "length":
            self.turns = self.turns[: len(self.done)]

    def to_record(self) -> dict[str, Any]:
        """The finished conversation."""
        record: dict[str, Any] = {
            "id": self.record_number,
            "answer": self.answer_index,
            "source": self.where,
            "key": self.key,
            "messages": self.done,
        }
        return record if self.tools is None else {**record, "tools": self.tools}

    def another(self, answer_index: int) -> AskedConversation:
        """The same questions once more, nothing of it answered yet."""
        return AskedConversation(self.record_number, self.where, list(self.turns), self.tools, answer_index)


def read_asked(value: Any, record_number: int, where: str) -> AskedConversation:
    """Read a decoded record; BadRecordError if it asks nothing."""
    if not isinstance(value, dict):
        raise BadRecordError(DropReason.NOT_AN_OBJECT, f"expected an object, got {type(value).__name__}")
    turns: list[dict[str, Any] | None] = []
    for index, message in enumerate(_messages(value), start=1):
        turn = _turn(message, index)
        if turn is not None or _asks(turns):
            turns.append(turn)
        elif isinstance(message.get("content"), str) and message["content"].strip():
            turns.append({"role": "assistant", "content": message["content"], "weight": 0})
    if _asks(turns):
        turns.append(None)
    if None not in turns:
        raise BadRecordError(DropReason.EMPTY_CONVERSATION, "nobody asks anything")
    while turns[-1] is not None:
        turns.pop()
    return AskedConversation(record_number, where, turns, read_tools(value.get("tools")))


def _asks(turns: list[dict[str, Any] | None]) -> bool:
    """Whether an answer may follow."""
    last = turns[-1] if turns else None
    return last is not None and last["role"] in ("user", "tool")


def _messages(value: dict[str, Any]) -> list[Any]:
    value = {key: entry for key, entry in value.items() if entry is not None}
    for key in CONVERSATION_KEYS:
        if key in value:
            if not isinstance(value[key], list):
                raise BadRecordError(DropReason.BAD_FIELD, f"{key}: expected a list, got {type(value[key]).__name__}")
            system = own_system_turn(value, value[key])
            return value[key] if system is None else [system, *value[key]]
    prompt_key = next((key for key in _PROMPTS if key in value), None)
    if prompt_key is None:
        raise BadRecordError(
            DropReason.UNKNOWN_FIELDS, f"expected messages or a prompt, got {', '.join(value)[:120]!r}"
        )
    prompt = value[prompt_key]
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict) and "role" in prompt[0]:
        return prompt
    text = read_text(prompt, prompt_key)
    if isinstance(value.get("input"), str) and value["input"].strip():
        text = f"{text}\n\n{value['input']}"
    if not text.strip():
        raise BadRecordError(DropReason.EMPTY_TEXT, f"{prompt_key} is empty")
    return [{"role": "user", "content": text}]


def _turn(message: Any, index: int) -> dict[str, Any] | None:
    """The message, or None in the place of an answer in words."""
    try:
        turn, _ = read_message(message, index)
    except BadRecordError as error:
        if error.reason is DropReason.EMPTY_ASSISTANT_TURN:
            return None
        raise
    if turn["role"] != "assistant":
        return turn
    return {**turn, "weight": 0} if "tool_calls" in turn else None


def _without_marks(message: dict[str, Any]) -> dict[str, Any]:
    """As a server knows messages: it is not shown earlier reasoning, nor what is only meant for training."""
    return {key: value for key, value in message.items() if key not in ("weight", "finish_reason", "reasoning_content")}
