"""From one line or row of a file to a Record, whatever of the known forms it has.

In: bytes of a JSON line, or an already decoded object. Out: Conversation, PlainText, RawPair or TokenIds; a record that
is none of these, or is damaged, raises BadRecordError with the reason.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.conversation import Conversation, PlainText, RawPair, Record, TokenIds
from tp_dflash.data.messages import own_system_turn, read_message, read_text

PairStyle = Literal["chat", "raw"]

_PAIRS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "output"), ("question", "answer"))
CONVERSATION_KEYS = ("messages", "conversations", "conversation")
_FORMS = {*CONVERSATION_KEYS, "input_ids", "text", *itertools.chain.from_iterable(_PAIRS)}
_MASKS = ("loss_mask", "assistant_masks", "completion_mask", "labels")
_IGNORED_LABEL = -100


def parse_line(line: bytes, pairs: PairStyle = "chat") -> Record:
    """Decode one line of JSON and read it."""
    return parse_object(decode_line(line), pairs)


def decode_line(line: bytes) -> Any:
    """The JSON value of a line."""
    stripped = line.strip()
    if not stripped:
        raise BadRecordError(DropReason.BLANK_LINE, "the line is empty")
    try:
        return json.loads(stripped.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecordError(DropReason.NOT_UTF8, f"{error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecordError(DropReason.NOT_JSON, f"{error}"[:200]) from None


def parse_object(value: Any, pairs: PairStyle = "chat") -> Record:
    """Read a decoded record. The first of messages, conversations, token ids, a pair, text that is present counts."""
    if not isinstance(value, dict):
        raise BadRecordError(DropReason.NOT_AN_OBJECT, f"expected an object, got {type(value).__name__}")
    nulls = [key for key, entry in value.items() if entry is None]
    if nulls:
        # Files of several forms have every field in every record: only what has a value says what a record is.
        value = {key: entry for key, entry in value.items() if entry is not None}
    for key in CONVERSATION_KEYS:
        if key in value:
            return _conversation(value[key], value, key)
    if "input_ids" in value:
        return _token_ids(value)
    for prompt_key, completion_key in _PAIRS:
        if prompt_key in value and completion_key in value:
            return _pair(value, prompt_key, completion_key, pairs)
    if "text" in value:
        return _plain_text(value["text"])
    known = "messages, conversations, input_ids, prompt and completion, text"
    if any(key in _FORMS for key in nulls):
        raise BadRecordError(DropReason.BAD_FIELD, f"expected one of {known}; got null for {', '.join(nulls)[:120]}")
    raise BadRecordError(
        DropReason.UNKNOWN_FIELDS, f"expected one of {known}; got {', '.join(map(str, value))[:120] or 'no value'}"
    )


def _conversation(messages: Any, value: dict[str, Any], key: str) -> Conversation:
    if not isinstance(messages, list):
        raise BadRecordError(DropReason.BAD_FIELD, f"{key}: expected a list, got {type(messages).__name__}")
    if not messages:
        raise BadRecordError(DropReason.EMPTY_CONVERSATION, f"{key} is an empty list")
    read = [(*read_message(message, number), _is_cut_off(message)) for number, message in enumerate(messages, start=1)]
    if (system := own_system_turn(value, messages)) is not None:
        read.insert(0, (system, False, False))
    last = max((index for index, (message, *_) in enumerate(read) if message["role"] == "assistant"), default=None)
    if last is None:
        roles = ", ".join(message["role"] for message, *_ in read)
        raise BadRecordError(DropReason.NO_ASSISTANT_TURN, f"the turns are {roles[:120]}")
    # What follows the last assistant turn can never be a label or be seen by a block.
    kept = read[: last + 1]
    return Conversation(
        messages=[message for message, *_ in kept],
        supervised=tuple(supervised for _, supervised, _ in kept),
        unfinished=frozenset(index for index, (*_, cut_off) in enumerate(kept) if cut_off),
        tools=read_tools(value.get("tools")),
        arguments=_arguments(value.get("chat_template_kwargs")),
    )


def _is_cut_off(message: dict[str, Any]) -> bool:
    """Whether an answer ended because there was no room for more of it, as servers report it."""
    return message.get("finish_reason") == "length"


def read_tools(tools: Any) -> list[Any] | None:
    """Function schemas of a record: a list, or its JSON."""
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise BadRecordError(DropReason.BAD_FIELD, f"tools: expected JSON, got {tools!r:.60}") from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRecordError(DropReason.BAD_FIELD, f"tools: expected a list of objects, got {tools!r:.60}")
    return tools


def _arguments(arguments: Any) -> dict[str, Any]:
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadRecordError(DropReason.BAD_FIELD, f"chat_template_kwargs: expected an object, got {arguments!r:.60}")
    return arguments


def _pair(value: dict[str, Any], prompt_key: str, completion_key: str, style: PairStyle) -> Record:
    prompt, completion = value[prompt_key], value[completion_key]
    if _are_messages(prompt) or _are_messages(completion):
        turns = [*_as_messages(prompt, "user"), *_as_messages(completion, "assistant")]
        return _conversation(turns, value, f"{prompt_key} and {completion_key}")
    prompt, completion = read_text(prompt, prompt_key), read_text(completion, completion_key)
    if isinstance(value.get("input"), str) and value["input"].strip():
        prompt = f"{prompt}\n\n{value['input']}"
    if not completion.strip():
        raise BadRecordError(DropReason.EMPTY_ASSISTANT_TURN, f"{completion_key} is empty")
    if style == "raw":
        return RawPair(prompt, completion)
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    return _conversation(turns, value, f"{prompt_key} and {completion_key}")


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _as_messages(value: Any, role: str) -> list[Any]:
    return value if _are_messages(value) else [{"role": role, "content": value}]


def _plain_text(text: Any) -> PlainText:
    if not isinstance(text, str):
        raise BadRecordError(DropReason.BAD_FIELD, f"text: expected a string, got {type(text).__name__}")
    if not text.strip():
        raise BadRecordError(DropReason.EMPTY_TEXT, "text is empty")
    return PlainText(text)


def _token_ids(value: dict[str, Any]) -> TokenIds:
    tokens = _integers(value["input_ids"], "input_ids")
    if not tokens:
        raise BadRecordError(DropReason.EMPTY_TEXT, "input_ids is empty")
    key = next((key for key in _MASKS if key in value), None)
    if key is None:
        return TokenIds(tokens, [True] * len(tokens))
    is_supervised: Callable[[int], bool] = (lambda label: label != _IGNORED_LABEL) if key == "labels" else bool
    loss_mask = [is_supervised(entry) for entry in _integers(value[key], key)]
    if len(loss_mask) != len(tokens):
        raise BadRecordError(DropReason.BAD_FIELD, f"{key}: expected {len(tokens)} entries, got {len(loss_mask)}")
    return TokenIds(tokens, loss_mask)


def _integers(values: Any, key: str) -> list[int]:
    if not isinstance(values, list) or not all(isinstance(entry, int) for entry in values):
        raise BadRecordError(DropReason.BAD_FIELD, f"{key}: expected a list of integers, got {values!r:.60}")
    return values
