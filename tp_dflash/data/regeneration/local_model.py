"""A Hugging Face model that answers a batch of conversations at a time on one device.

In: conversations. Out: the same, filled. Prompts are padded on the left; each answer ends at its own end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tp_dflash.data.chat_renderer import TEMPLATE_FAULTS
from tp_dflash.data.regeneration.asked import Answer, AskedConversation
from tp_dflash.data.regeneration.settings import SamplingSettings

_OPEN, _CLOSE = "<think>", "</think>"


class LocalModel:
    """settings.model: folder or name. dtype: of the weights, "auto" for the file's own."""

    def __init__(
        self, settings: SamplingSettings, device: str, dtype: str = "auto", trust_remote_code: bool = False
    ) -> None:
        self.settings = settings
        self._device = torch.device(device)
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model, trust_remote_code=trust_remote_code)
        # Typed loosely: the auto class returns whatever class the folder names.
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=dtype, trust_remote_code=trust_remote_code
        )
        self._model = model.to(self._device).eval()
        configured = self._model.generation_config.eos_token_id
        found = configured if configured is not None else self._tokenizer.eos_token_id
        self._eos = [found] if isinstance(found, int) else list(found or [])
        if not self._eos:
            raise ValueError(
                f"expected a model that knows its end-of-sequence token, got {settings.model} without one; set "
                "eos_token_id in its generation_config.json"
            )
        longest = self._model.config.get_text_config().to_dict().get("max_position_embeddings")
        self._longest_prompt = None if longest is None else longest - settings.max_tokens

    def fill(self, conversations: Sequence[AskedConversation]) -> list[tuple[AskedConversation, str | None]]:
        """Fill all holes of all conversations, those that still have one together, turn by turn."""
        failures: dict[int, str] = {}
        asked = self._next_prompts(conversations, failures)
        while asked:
            for conversation, answer in self._answers(asked):
                if answer.content.strip() or answer.reasoning.strip():
                    conversation.fill(answer)
                else:
                    failures[conversation.number] = "the answer is empty"
            asked = self._next_prompts([conversation for conversation, _ in asked], failures)
        return [(conversation, failures.get(conversation.number)) for conversation in conversations]

    def _next_prompts(
        self, conversations: Sequence[AskedConversation], failures: dict[int, str]
    ) -> list[tuple[AskedConversation, list[int]]]:
        """Those that have another hole, with the tokens in front of it."""
        asked = []
        for conversation in conversations:
            if conversation.number in failures or (prompt := conversation.next_prompt()) is None:
                continue
            try:
                ids = self._prompt_ids(prompt, conversation.tools)
            except TEMPLATE_FAULTS as error:
                failures[conversation.number] = f"the chat template refuses: {error}"[:200]
                continue
            if self._longest_prompt is not None and len(ids) > self._longest_prompt:
                failures[conversation.number] = f"a prompt of {len(ids)} tokens leaves no room for an answer"
            else:
                asked.append((conversation, ids))
        return asked

    def _prompt_ids(self, messages: list[dict[str, Any]], tools: Any) -> list[int]:
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **self.settings.template_arguments
        )
        return list(self._tokenizer(str(text), add_special_tokens=False)["input_ids"])

    def _answers(self, asked: list[tuple[AskedConversation, list[int]]]) -> list[tuple[AskedConversation, Answer]]:
        prompts = [ids for _, ids in asked]
        if self.settings.seed is not None:
            torch.manual_seed(self.settings.seed + asked[0][0].number)
        generated = self._generate(prompts).tolist()
        return [(conversation, self._answer(ids)) for (conversation, _), ids in zip(asked, generated, strict=True)]

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]]) -> Tensor:
        """New tokens of each row, padded with an end-of-sequence token."""
        width = max(map(len, prompts))
        ids = torch.tensor([[self._eos[0]] * (width - len(row)) + row for row in prompts], device=self._device)
        visible = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts], device=self._device)
        settings = self.settings
        sampling: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
        }
        options = {name: value for name, value in sampling.items() if value is not None}
        if settings.temperature == 0:
            options = dict.fromkeys(sampling) | {"do_sample": False}
        elif options:
            options["do_sample"] = True
        output = self._model.generate(
            ids,
            attention_mask=visible,
            max_new_tokens=settings.max_tokens,
            eos_token_id=self._eos,
            pad_token_id=self._eos[0],
            **options,
        )
        return output[:, width:]

    def _answer(self, ids: list[int]) -> Answer:
        end = next((index for index, token in enumerate(ids) if token in self._eos), None)
        text = str(self._tokenizer.decode(ids[:end], skip_special_tokens=True))
        reasoning, content = _split_reasoning(text)
        finish_reason = "length" if end is None else "stop"
        return Answer(content, reasoning, finish_reason, len(ids) if end is None else end + 1)


def _split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and answer; the opening tag may have been part of the prompt."""
    before, closed, after = text.partition(_CLOSE)
    if closed:
        return before.replace(_OPEN, "", 1).strip("\n"), after.lstrip("\n")
    if text.lstrip().startswith(_OPEN):
        return text.replace(_OPEN, "", 1).strip("\n"), ""
    return "", text
