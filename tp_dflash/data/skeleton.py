"""A rendered conversation with holes: what a template prints around the words, and which holes the assistant fills.

In: a render function and messages. Out: for any words of the same shape, the text they give and the supervised spans in
it. Spans come from the places of unique stand-ins, never from a search for words or tags, so content that contains a
template's own tags, repeats, deleted reasoning and templates without generation tags make no difference.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.markers import WORD_PATTERN, MarkedMessages, Slot, mark_messages
from tp_dflash.data.text_encoder import Span

Render = Callable[[list[dict[str, Any]], bool], str]

_OPEN_TAG = re.compile(r"<think>\s*$")


@dataclass(frozen=True)
class TurnPlace:
    """Where an assistant turn lies, in holes: from ``lead`` characters before hole ``first`` to ``tail`` after ``last``.

    generated: characters before hole ``first`` from which on the model writes (lead <= generated).
    """

    message_index: int
    first: int
    last: int
    generated: int
    lead: int
    tail: int


@dataclass(frozen=True)
class Skeleton:
    """literals: template text before, between and after the holes. slot_ids: what fills each hole, in printed order."""

    literals: tuple[str, ...]
    slot_ids: tuple[int, ...]
    turns: tuple[TurnPlace, ...]

    def fill(self, texts: list[str]) -> tuple[str, dict[int, Span]]:
        """The text with these words (by slot) in the holes, and the span of each assistant turn by message index."""
        parts, starts, stops, end = [self.literals[0]], [], [], len(self.literals[0])
        for slot_id, literal in zip(self.slot_ids, self.literals[1:], strict=True):
            text = texts[slot_id]
            starts.append(end)
            stops.append(end + len(text))
            parts += [text, literal]
            end += len(text) + len(literal)
        spans = {
            turn.message_index: Span(
                generated_from=starts[turn.first] - turn.generated,
                start=starts[turn.first] - turn.lead,
                stop=stops[turn.last] + turn.tail,
                tail=turn.tail,
            )
            for turn in self.turns
        }
        return "".join(parts), spans


class SkeletonBuilder:
    """Builds skeletons with one template.

    added_tokens: the tokenizer's added tokens, of which one may directly end a turn. late_end_tokens: those that count
    although the template prints them only before the next turn. end_of_turn: what ends a plain assistant turn.
    """

    def __init__(self, added_tokens: list[str], late_end_tokens: list[str]) -> None:
        self._end_tokens = sorted({*added_tokens, *late_end_tokens}, key=len, reverse=True)
        self._late_end_tokens = late_end_tokens
        self.end_of_turn = ""

    def probe(self, render: Render) -> None:
        """Learn ``end_of_turn`` from the plainest conversation; an error if the template does not print the answer."""
        messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
        marked = mark_messages(messages, all_turns=True)
        literals, slot_ids = split_words(render(marked.messages, False))
        if 1 not in slot_ids:
            raise ValueError(
                "expected a chat template that prints the assistant's words, got one that leaves them out; correct it "
                "or set data.template.chat_template"
            )
        self.end_of_turn = self._end_after_text(literals[-1], literals[-1]).strip()

    def build(self, render: Render, marked: MarkedMessages) -> Skeleton:
        """Raises BadRecordError where a template prints a text twice or an assistant turn has no clear place.

        A turn of which the template leaves out a tool call gets no place: the rest is not what the assistant wrote.
        """
        literals, slot_ids = split_words(render(marked.messages, False))
        if len(set(slot_ids)) != len(slot_ids):
            raise BadRecordError(DropReason.MASK_NOT_EXACT, "the template prints a message more than once")
        turns = []
        unprinted = {
            slot.message_index
            for slot_id, slot in enumerate(marked.slots)
            if slot.kind == "call" and slot_id not in slot_ids
        }
        for index, message in enumerate(marked.messages):
            holes = [hole for hole, slot_id in enumerate(slot_ids) if marked.slots[slot_id].message_index == index]
            if message["role"] == "assistant" and holes and index not in unprinted:
                if holes[-1] - holes[0] != len(holes) - 1:
                    raise BadRecordError(DropReason.MASK_NOT_EXACT, f"the template tears message {index + 1} apart")
                turns.append(self._place(render, marked, index, literals, slot_ids, holes[0], holes[-1]))
        return Skeleton(tuple(literals), tuple(slot_ids), tuple(turns))

    def _place(
        self,
        render: Render,
        marked: MarkedMessages,
        index: int,
        literals: list[str],
        slot_ids: list[int],
        first: int,
        last: int,
    ) -> TurnPlace:
        generated, lead = _before(render, marked, index, literals[first], marked.slots[slot_ids[first]])
        closing = split_words(render(marked.messages[: index + 1], False))[0][-1]
        tail = self._tail(literals[last + 1], closing, marked.messages[index], marked.slots[slot_ids[last]])
        return TurnPlace(index, first, last, generated, lead, tail)

    def _tail(self, after: str, closing: str, message: dict[str, Any], last_slot: Slot) -> int:
        """Characters after a turn's last hole that belong to the turn; ``closing``: what ends it when nothing follows."""
        if last_slot.kind == "content" and "tool_calls" not in message and "think>" not in message["content"]:
            return len(self._end_after_text(after, closing))
        # The template prints more than words (arguments of calls, a closing tag): all up to the end-of-turn token.
        at = closing.rfind(self.end_of_turn) if self.end_of_turn else -1
        whole = closing[: at + len(self.end_of_turn)] if at >= 0 else closing.rstrip()
        if not after.startswith(whole):
            raise BadRecordError(
                DropReason.MASK_NOT_EXACT, f"expected a turn to end with {whole!r:.60}, got {after!r:.60}"
            )
        return len(whole)

    def _end_after_text(self, after: str, closing: str) -> str:
        """The end-of-turn token that follows the assistant's words directly or after blanks, with those blanks."""
        words, shown = after.lstrip(), closing.lstrip()
        blanks = after[: len(after) - len(words)]
        token = next((token for token in self._end_tokens if words.startswith(token)), "")
        # A token that only opens the next turn is not an end: the template must print one at the very end as well,
        # the same one or (harmony) another in the same place.
        same_place = not blanks and any(closing.startswith(other) for other in self._end_tokens)
        if token and (token in self._late_end_tokens or shown.startswith(token) or same_place):
            return blanks + token
        if not token and shown.strip() and words.startswith(shown.strip()):
            return blanks + shown.strip()
        return ""


def split_words(text: str) -> tuple[list[str], list[int]]:
    """Template text around the stand-ins, and the slot of each stand-in."""
    parts = WORD_PATTERN.split(text)
    return parts[::2], [int(digits) for digits in parts[1::2]]


def _before(render: Render, marked: MarkedMessages, index: int, before: str, slot: Slot) -> tuple[int, int]:
    """Characters of ``before`` that the model generates, and those of them that are supervised."""
    prompt = _generation_prompt(render, marked.messages[:index])
    generated = _after_prompt(before, prompt, slot)
    if generated is None:
        raise BadRecordError(DropReason.MASK_NOT_EXACT, f"it is not clear where message {index + 1} starts")
    if slot.kind in ("reasoning", "call") or slot.tagged:
        return len(generated), len(generated)
    own = len(slot.lead) if generated.endswith(slot.lead) else 0
    # Anything but blanks is a reasoning block that only the template writes: not the assistant's words.
    return (own, own) if generated.strip() else (len(generated), own)


def _after_prompt(before: str, prompt: str | None, slot: Slot) -> str | None:
    """The part of ``before`` that follows the generation prompt."""
    if prompt is not None and before.startswith(prompt):
        return before[len(prompt) :]
    # Earlier turns may be printed otherwise than they were prompted for (an empty reasoning block is left out).
    if slot.kind == "call":
        return None
    if slot.kind == "reasoning":
        tag = _OPEN_TAG.search(before)
        return tag.group() if tag else ""
    rest = before[_num_common(before, prompt or "") :]
    return "" if rest.strip() else rest


def _generation_prompt(render: Render, messages: list[dict[str, Any]]) -> str | None:
    """Template text between the last stand-in and the place where the model starts to write; None if not printable."""
    try:
        return split_words(render(messages, True))[0][-1]
    except BadRecordError:
        return None


def _num_common(one: str, other: str) -> int:
    """Characters that two texts share at their start."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
