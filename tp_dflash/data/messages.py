"""One message of a conversation, from the forms that people have to the form that chat templates expect.

In: a decoded JSON value. Out: a dict with a known role and text content. Anything else raises BadRecordError.
"""

from __future__ import annotations

import json
from typing import Any

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.markers import THINK_TAG

_ROLES = {
    "system": "system", "developer": "developer", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
    "bot": "assistant", "tool": "tool", "function": "tool", "observation": "tool", "function_call": "assistant",
}  # fmt: skip
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TRAINED_ON = ("weight", "train")
_KEPT = ("name", "tool_call_id")


def read_message(value: Any, number: int) -> tuple[dict[str, Any], bool]:
    """A message of a conversation (``number`` counts from 1) and whether it may be supervised.

    Reads OpenAI's ``role``/``content`` and ShareGPT's ``from``/``value``. A ``weight`` or ``train`` of 0 or false on an
    assistant message keeps it as context only; null says nothing.
    """
    if not isinstance(value, dict):
        raise BadRecordError(DropReason.BAD_MESSAGE, f"message {number}: expected an object, got {_name(value)}")
    sharegpt = "from" in value and "role" not in value
    role_name = value.get("from" if sharegpt else "role")
    if not isinstance(role_name, str) or role_name.lower() not in _ROLES:
        known = ", ".join(sorted(set(_ROLES.values())))
        raise BadRecordError(
            DropReason.UNKNOWN_ROLE, f"message {number}: expected one of {known}, got {role_name!r:.60}"
        )
    role = _ROLES[role_name.lower()]
    content = value.get("value" if sharegpt else "content")
    message: dict[str, Any] = {"role": role, "content": read_text(content, f"message {number}")}
    message |= {key: value[key] for key in _KEPT if isinstance(value.get(key), str)}
    if role != "assistant":
        return message, False
    if role_name.lower() == "function_call":
        message |= {"content": "", "tool_calls": [_call_from_text(message["content"], number)]}
    _add_reasoning(message, value, number)
    _add_tool_calls(message, value, number)
    # Reasoning tags alone are no words: a template could not show where the turn begins.
    words = THINK_TAG.sub("", message["content"]).strip()
    if not (words or "reasoning_content" in message or "tool_calls" in message):
        raise BadRecordError(DropReason.EMPTY_ASSISTANT_TURN, f"message {number}: the assistant says nothing")
    return message, all(value.get(key) is None or bool(value[key]) for key in _TRAINED_ON)


def own_system_turn(record: dict[str, Any], messages: list[Any]) -> dict[str, Any] | None:
    """The record's ``system`` text as a turn to stand before its messages; None without one, or if they begin with one."""
    system, first = record.get("system"), messages[0] if messages else None
    begins = isinstance(first, dict) and "system" in (first.get("role"), first.get("from"))
    return {"role": "system", "content": system} if isinstance(system, str) and system and not begins else None


def read_text(content: Any, where: str) -> str:
    """Text of a content field: a string, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRecordError(DropReason.BAD_MESSAGE, f"{where}: expected text or a list of parts, got {_name(content)}")
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise BadRecordError(DropReason.NON_TEXT_CONTENT, f"{where}: expected text parts, got a part {kind!r:.40}")
        parts.append(text)
    return "".join(parts)


def _add_reasoning(message: dict[str, Any], value: dict[str, Any], number: int) -> None:
    reasoning = next((value[key] for key in _REASONING if value.get(key)), None)
    if reasoning is None:
        return
    text = read_text(reasoning, f"reasoning of message {number}")
    if text.strip():
        message["reasoning_content"] = text


def _add_tool_calls(message: dict[str, Any], value: dict[str, Any], number: int) -> None:
    calls = value.get("tool_calls")
    if calls is None and isinstance(value.get("function_call"), dict):
        calls = [{"function": value["function_call"]}]
    if not calls:
        return
    if not isinstance(calls, list):
        raise BadRecordError(
            DropReason.BAD_MESSAGE, f"message {number}: expected a list of tool calls, got {_name(calls)}"
        )
    message["tool_calls"] = [_read_call(call, number) for call in calls]


def _read_call(call: Any, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRecordError(
            DropReason.BAD_MESSAGE, f"message {number}: expected tool calls with a name, got {call!r:.60}"
        )
    arguments = function.get("arguments", {})
    # Templates print arguments with tojson: a string of JSON would be quoted once more.
    if isinstance(arguments, str):
        arguments = _json_object(arguments)
    known = {key: call[key] for key in ("id",) if isinstance(call.get(key), str)}
    return {"type": "function", **known, "function": {"name": function["name"], "arguments": arguments}}


def _call_from_text(text: str, number: int) -> dict[str, Any]:
    call = _json_object(text)
    if not isinstance(call, dict):
        raise BadRecordError(
            DropReason.BAD_MESSAGE, f"message {number}: expected a function call in JSON, got {text!r:.60}"
        )
    return _read_call(call, number)


def _json_object(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
