"""A tokenizer with one token a character, id = its code: what a test asks can be read in the ids."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def character_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    vocabulary = {chr(code): code for code in range(128)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=chat_template)
