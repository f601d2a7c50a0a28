"""By what a target is recognised again: its name, its sizes, and digests of the parts that a drafter depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from tp_dflash.config.target import TargetConfig
from tp_dflash.target import TargetFacts, read_head_rows, target_file

_HEAD_ROWS = 16


@dataclass(frozen=True)
class TargetIdentity:
    """head: digest of some rows of the lm_head in bf16; tokenizer, chat_template: of those files' contents.

    A digest is None where there is nothing to take it of (made-up weights, no tokenizer in the folder).
    """

    name_or_path: str
    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    num_layers: int
    head: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None

    @staticmethod
    def of(config: TargetConfig, facts: TargetFacts, name: str | None = None) -> TargetIdentity:
        """Identity of the target of a run; ``name`` (a hub name, say) is published in place of its folder."""
        return TargetIdentity(
            name_or_path=name or facts.name,
            architectures=facts.architectures,
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            num_layers=facts.num_layers,
            head=None if config.random_weights else head_digest(config, facts),
            tokenizer=_file_digest(target_file(config, "tokenizer.json")),
            chat_template=_template_digest(config),
        )


def head_digest(config: TargetConfig, facts: TargetFacts) -> str:
    """SHA-256 of evenly spread lm_head rows, in bf16 so that it does not depend on the dtype they are loaded in."""
    digest = hashlib.sha256()
    for row in torch.linspace(0, facts.vocab_size - 1, _HEAD_ROWS).long().tolist():
        rows = read_head_rows(config, facts, row, row + 1)
        digest.update(rows.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _template_digest(config: TargetConfig) -> str | None:
    """Digest of the chat template's text, wherever it is kept beside the weights."""
    file = target_file(config, "chat_template.jinja")
    if file is not None:
        return _file_digest(file)
    settings = target_file(config, "tokenizer_config.json")
    text = None if settings is None else json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    return None if text is None else hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _file_digest(file: Path | None) -> str | None:
    return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
