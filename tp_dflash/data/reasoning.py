"""Taking an assistant's reasoning out of a conversation, for drafters that serve a model with thinking switched off."""

from __future__ import annotations

import re
from typing import Any

_REASONING = re.compile(r"^\s*(?:<think>)?.*?</think>\s*", re.DOTALL)


def without_reasoning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assistant messages without ``reasoning_content`` and without a reasoning block at the start of their content.

    A turn that has nothing but reasoning keeps it: there would be no answer left.
    """
    return [_answer_only(message) if message["role"] == "assistant" else message for message in messages]


def _answer_only(message: dict[str, Any]) -> dict[str, Any]:
    content = _REASONING.sub("", message["content"], count=1)
    if not content.strip() and "tool_calls" not in message:
        return message
    return {key: value for key, value in message.items() if key != "reasoning_content"} | {"content": content}
