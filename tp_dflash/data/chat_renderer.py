"""A conversation to its rendered text and the spans of it that the assistant wrote, for any chat template.

In: a Conversation. Out: exactly the text that the tokenizer's own template call gives, and supervised spans. A text is
only returned if the skeleton that its spans come from reproduces it character by character; otherwise BadRecordError.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from tp_dflash.config.data import TemplateConfig
from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.conversation import Conversation
from tp_dflash.data.markers import MarkedMessages, is_free_of_words, mark_messages, plain_shape
from tp_dflash.data.reasoning import without_reasoning
from tp_dflash.data.skeleton import Render, Skeleton, SkeletonBuilder
from tp_dflash.data.text_encoder import Span

_REMEMBERED_SHAPES = 1024
# What a template's own expressions raise on messages it was not written for.
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError)


class ChatRenderer:
    """One tokenizer's chat template with this run's options. ``end_of_turn``: text that ends an assistant turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: TemplateConfig) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._chat_template = read_chat_template(tokenizer, template)
        added = [*tokenizer.get_added_vocab(), *([tokenizer.eos_token] if tokenizer.eos_token else [])]
        self._builder = SkeletonBuilder(added, template.end_tokens)
        self._shapes: dict[Hashable, Skeleton | BadRecordError] = {}
        try:
            self._builder.probe(self._render(None, self._arguments({})))
        except BadRecordError as error:
            raise ValueError(
                f"expected a chat template that renders one user and one assistant turn, got: {error.detail}; set "
                "data.template.chat_template or data.template.arguments"
            ) from None

    @property
    def end_of_turn(self) -> str:
        return self._builder.end_of_turn

    def render(self, conversation: Conversation) -> tuple[str, tuple[Span, ...]]:
        """Text and ascending spans; BadRecordError if the template refuses or the spans cannot be made exact."""
        arguments = self._arguments(conversation.arguments)
        messages = conversation.messages
        if arguments.get("enable_thinking") is False:
            messages = without_reasoning(messages)
        render = self._render(conversation.tools, arguments)
        text = render(messages, False)
        if not is_free_of_words(text):
            raise BadRecordError(DropReason.MASK_NOT_EXACT, "the text contains one of the words used to mark turns")
        spans = self._spans(render, text, messages, f"{conversation.tools}{arguments}")
        return text, self._supervised(conversation, spans)

    def _spans(self, render: Render, text: str, messages: list[dict[str, Any]], context: str) -> dict[int, Span]:
        """Spans by message. First with all words left out, which one skeleton serves for all of a shape; if the
        template acts on what users say, with the assistant's words left out alone."""
        plain = plain_shape(messages)
        known = None if plain is None else self._shapes.get((plain[0], context))
        if plain is not None and isinstance(known, Skeleton):
            filled, spans = known.fill(plain[1])
            if filled == text:
                return spans
        reason = BadRecordError(DropReason.MASK_NOT_EXACT, "the template changes the assistant's words")
        for all_turns in (True, False):
            marked = mark_messages(messages, all_turns=all_turns)
            skeleton = self._skeleton(render, marked, context) if all_turns else self._build(render, marked)
            if isinstance(skeleton, BadRecordError):
                reason = skeleton.bare()
                continue
            if all_turns and plain is not None:
                self._remember((plain[0], context), skeleton)
            filled, spans = skeleton.fill(marked.texts)
            if filled == text:
                return spans
        raise reason

    def _skeleton(self, render: Render, marked: MarkedMessages, context: str) -> Skeleton | BadRecordError:
        shape = f"{marked.messages}{[(slot.kind, slot.lead, slot.tagged) for slot in marked.slots]}{context}"
        skeleton = self._shapes.get(shape)
        if skeleton is None:
            skeleton = self._build(render, marked)
            self._remember(shape, skeleton)
        return skeleton

    def _remember(self, shape: Hashable, skeleton: Skeleton | BadRecordError) -> None:
        """Emptied when full, whoever else looks into it: every look-up is a single one and may find nothing."""
        if len(self._shapes) >= _REMEMBERED_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = skeleton

    def _build(self, render: Render, marked: MarkedMessages) -> Skeleton | BadRecordError:
        try:
            return self._builder.build(render, marked)
        except BadRecordError as error:
            return error.bare()

    def _supervised(self, conversation: Conversation, spans: dict[int, Span]) -> tuple[Span, ...]:
        wanted = [index for index, supervised in enumerate(conversation.supervised) if supervised]
        if self._template.turns == "last":
            wanted = [index for index in wanted if index == len(conversation.messages) - 1]
        if not wanted:
            raise BadRecordError(DropReason.NOTHING_SUPERVISED, "no assistant turn of it may be trained on")
        for index in wanted:
            if index not in spans and "tool_calls" in conversation.messages[index]:
                raise BadRecordError(
                    DropReason.MASK_NOT_EXACT, f"the template leaves out the tool calls of message {index + 1}"
                )
        chosen = tuple(
            spans[index].without_tail() if index in conversation.unfinished else spans[index]
            for index in wanted
            if index in spans
        )
        if not chosen:
            raise BadRecordError(DropReason.MASK_NOT_EXACT, "the template prints none of the supervised turns")
        return chosen

    def _arguments(self, own: dict[str, Any]) -> dict[str, Any]:
        """Template variables: the run's options, then what the record itself brings."""
        thinking = self._template.thinking
        options = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        return {**options, **self._template.arguments, **own}

    def _render(self, tools: list[Any] | None, arguments: dict[str, Any]) -> Render:
        def render(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
            try:
                text = self._tokenizer.apply_chat_template(
                    [_with_aliases(message) for message in messages],
                    tools=tools,
                    chat_template=self._chat_template,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                    **arguments,
                )
            except TEMPLATE_FAULTS as error:
                raise BadRecordError(DropReason.TEMPLATE_ERROR, f"{error}"[:200]) from None
            return str(text)

        return render


def read_chat_template(tokenizer: PreTrainedTokenizerBase, template: TemplateConfig) -> str | None:
    """The template to use instead of the tokenizer's own, or None; an error if there is neither."""
    if template.chat_template is not None:
        try:
            return Path(template.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"expected a Jinja file, got {template.chat_template}: {error.strerror}; correct "
                "data.template.chat_template"
            ) from None
    if not tokenizer.chat_template:
        raise ValueError(
            "expected a tokenizer with a chat template for conversations, got one without; set "
            "data.template.chat_template to a Jinja file"
        )
    return None


def _with_aliases(message: dict[str, Any]) -> dict[str, Any]:
    """Some templates read reasoning as ``thinking``."""
    if "reasoning_content" not in message:
        return message
    return {**message, "thinking": message["reasoning_content"]}
