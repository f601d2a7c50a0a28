"""What a record can turn out to be: a conversation, plain text, a raw pair, or ready token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Conversation:
    """Messages in the form chat templates expect, ending with an assistant turn.

    messages: dicts with ``role`` (system, developer, user, assistant, tool), ``content`` (str), and where present
    ``reasoning_content`` (str), ``tool_calls``, ``name``, ``tool_call_id``. supervised: for each message, whether it is
    an assistant turn that may be trained on. unfinished: assistant turns that were cut off where they were written; the
    token that ends a turn is not theirs. tools: function schemas. arguments: template variables of this record.
    """

    messages: list[dict[str, Any]]
    supervised: tuple[bool, ...]
    unfinished: frozenset[int] = frozenset()
    tools: list[Any] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlainText:
    """Text without turns: every token of it is supervised."""

    text: str


@dataclass(frozen=True)
class RawPair:
    """A prompt and the completion that follows it without any template: the completion is supervised."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class TokenIds:
    """Tokens that somebody else made, with their loss mask."""

    tokens: list[int]
    loss_mask: list[bool]


Record = Conversation | PlainText | RawPair | TokenIds
