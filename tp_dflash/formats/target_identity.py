"""By what a target is recognised again: its name, its sizes, and digests of the parts that a drafter depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from tp_dflash.config.target import TargetConfig
from tp_dflash.target import TargetFacts, read_head_rows

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
        folder = Path(config.path) if config.path is not None and Path(config.path).is_dir() else None
        return TargetIdentity(
            name_or_path=name or facts.name,
            architectures=facts.architectures,
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            num_layers=facts.num_layers,
            head=None if config.random_weights else head_digest(config, facts),
            tokenizer=None if folder is None else _file_digest(folder / "tokenizer.json"),
            chat_template=None if folder is None else template_digest(folder),
        )


def head_digest(config: TargetConfig, facts: TargetFacts) -> str:
    """SHA-256 of evenly spread lm_head rows, in bf16 so that it does not depend on the dtype they are loaded in."""
    digest = hashlib.sha256()
    for row in torch.linspace(0, facts.vocab_size - 1, _HEAD_ROWS).long().tolist():
        rows = read_head_rows(config, facts, row, row + 1)
        digest.update(rows.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def template_digest(folder: Path) -> str | None:
    """Digest of the chat template's text, wherever the folder keeps it."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()
    settings = folder / "tokenizer_config.json"
    text = json.loads(settings.read_text(encoding="utf-8")).get("chat_template") if settings.is_file() else None
    return None if text is None else hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _file_digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
