"""Stand-ins for the words of a conversation, so that a template shows where it puts them.

In: messages. Out: the same messages with every text replaced by a unique word, and the list of what each word stands
for. Surrounding blanks and reasoning tags stay as they are, because templates act on them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

THINK_TAG = re.compile(r"(</?think>)")
_STEM = "Zq7Vx"

SlotKind = Literal["other", "reasoning", "content", "call"]


class Slot(NamedTuple):
    """One replaced text. lead: blanks in front of it that belong to the text. tagged: a reasoning tag stands before."""

    message_index: int
    kind: SlotKind
    text: str
    lead: str
    tagged: bool


@dataclass(frozen=True)
class MarkedMessages:
    """Messages whose i-th stand-in is ``word(stem, i)`` and stands for ``slots[i]``."""

    messages: list[dict[str, Any]]
    slots: list[Slot]

    @property
    def texts(self) -> list[str]:
        return [slot.text for slot in self.slots]


def word(index: int) -> str:
    return f"{_STEM}{index:05d}q"


WORD_PATTERN = re.compile(rf"{_STEM}(\d{{5}})q")


def is_free_of_words(text: str) -> bool:
    """Whether a text can be marked at all: it must not contain a stand-in already."""
    return _STEM not in text


def mark_messages(messages: list[dict[str, Any]], *, all_turns: bool) -> MarkedMessages:
    """Replace the texts of assistant turns and, with ``all_turns``, of the others too."""
    marking = _Marking()
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            marking.mark_assistant(index, message)
        elif all_turns:
            marking.messages.append({**message, "content": marking.replaced(index, "other", message["content"])})
        else:
            marking.messages.append(message)
    return MarkedMessages(marking.messages, marking.slots)


def plain_shape(messages: list[dict[str, Any]]) -> tuple[Hashable, list[str]] | None:
    """All that marking keeps of messages that are words alone, and the texts that it replaces; None for other messages.

    Equal shapes have equal marked messages: this saves marking most conversations of a data set.
    """
    shape: list[Hashable] = []
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        if len(message) != 2 or "think>" in content:
            return None
        core = content.strip()
        if not core:
            shape.append((message["role"], content))
            continue
        texts.append(core)
        if len(core) == len(content):
            shape.append(message["role"])
        else:
            lead = len(content) - len(content.lstrip())
            shape.append((message["role"], content[:lead], content[lead + len(core) :]))
    return tuple(shape), texts


class _Marking:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.slots: list[Slot] = []

    def mark_assistant(self, index: int, message: dict[str, Any]) -> None:
        marked = dict(message)
        if "reasoning_content" in message:
            marked["reasoning_content"] = self.replaced(index, "reasoning", message["reasoning_content"])
        marked["content"] = self._pieces(index, message["content"])
        if "tool_calls" in message:
            marked["tool_calls"] = [self._call(index, call) for call in message["tool_calls"]]
        self.messages.append(marked)

    def replaced(self, index: int, kind: SlotKind, text: str, tagged: bool = False) -> str:
        core = text.strip()
        if not core:
            return text
        lead = text[: len(text) - len(text.lstrip())]
        trail = text[len(lead) + len(core) :]
        self.slots.append(Slot(index, kind, core, lead, tagged))
        return f"{lead}{word(len(self.slots) - 1)}{trail}"

    def _pieces(self, index: int, content: str) -> str:
        """Content with its reasoning tags kept: templates split at them."""
        if "think>" not in content:
            return self.replaced(index, "content", content)
        pieces = THINK_TAG.split(content)
        tagged, marked, kind = False, [], "content"
        for piece in pieces:
            if THINK_TAG.fullmatch(piece):
                tagged, kind = True, "reasoning" if piece == "<think>" else "content"
                marked.append(piece)
            else:
                marked.append(self.replaced(index, kind, piece, tagged))  # type: ignore[arg-type]
        return "".join(marked)

    def _call(self, index: int, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "name": self.replaced(index, "call", function["name"])}}
