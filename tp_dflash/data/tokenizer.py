"""Tokenizers from folders or the hub, loaded the same way wherever one is needed."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase


def load_tokenizer(name: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """ValueError that names the setting where ``name`` is no tokenizer's folder or hub name."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"data.tokenizer: expected a folder or name of a tokenizer, got {name!r}: {error}; correct it or --tokenizer, or "
            "target.path, whose tokenizer is used where data.tokenizer is unset"
        ) from None
    return tokenizer
