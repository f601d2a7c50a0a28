"""A name for everything that decides which documents come out of a preparation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tp_dflash.config.data import DataConfig
from tp_dflash.data.record_file import list_record_files
from tp_dflash.data.store_writer import STORE_VERSION

_DECIDING = ("validation_fraction", "max_length", "over_length", "template", "strict")


def fingerprint(config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over files, tokenizer, template and options; file names, workers and pack sizes do not count.

    Every rank may compute it: it reads the files (the largest only at both ends) but parses nothing.
    """
    parts: dict[str, object] = {
        "version": STORE_VERSION,
        "tokenizer": _tokenizer_text(tokenizer),
        "chat_template": _template_text(config, tokenizer),
        "options": {name: value for name, value in config.model_dump(mode="json").items() if name in _DECIDING},
    }
    for split, sources in (("train", config.train), ("validation", config.validation)):
        parts[split] = [[file.digest(), file.weight] for file in list_record_files(sources)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def store_folder(config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Where the prepared data of this configuration belongs: below ``data.cache``, under its fingerprint."""
    return Path(config.cache) / fingerprint(config, tokenizer)[:16]


def _tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = (
        tokenizer.backend_tokenizer.to_str() if isinstance(tokenizer, PreTrainedTokenizerFast) else repr(tokenizer)
    )
    return f"{backend}\n{tokenizer.special_tokens_map}"


def _template_text(config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    path = config.template.chat_template
    return str(tokenizer.chat_template) if path is None else Path(path).read_text(encoding="utf-8")
