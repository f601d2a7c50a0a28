"""The target that is given now against the one that the drafter was trained for: head, tokenizer, template, thinking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tp_dflash.config.target import TargetConfig
from tp_dflash.data.tokenizer import load_tokenizer
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.target_identity import TargetIdentity
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import TargetFacts, read_embedding_rows, read_head_rows, target_file

_ROWS = 64


def check_target_identity(view: FolderView, config: TargetConfig, facts: TargetFacts) -> Iterator[Finding]:
    """Findings on the target's files; its weights are not loaded."""
    tied = "the embedding table (tied)" if facts.tied else "a matrix of its own"
    if view.layout == "zlab":
        own = view.network.get("tie_word_embeddings")
        yield Finding(
            "tied head",
            f"the target's lm_head is {tied}; the drafter has none, tie_word_embeddings {own}",
            "write tie_word_embeddings false: the drafter has no embedding to tie" if own else None,
        )
    if view.record is None:
        yield Finding("trained for", f"not recorded; checked by sizes against {facts.name}")
        return
    now, trained = TargetIdentity.of(config, facts), view.record.target
    for subject, got, expected, remedy in (
        ("lm_head", now.head, trained.head, "use the target that the drafter was trained for, unchanged"),
        ("tokenizer", now.tokenizer, trained.tokenizer, "serve with the tokenizer.json of training"),
        ("chat template", now.chat_template, trained.chat_template, "serve with the chat template of training"),
    ):
        if expected is None:
            yield Finding(subject, "not recorded")
        else:
            same = got == expected
            figure = (
                f"the same as in training ({expected[:12]})"
                if same
                else f"{(got or 'none')[:12]}, {expected[:12]} in training"
            )
            yield Finding(subject, figure, None if same else remedy)


def check_carried_matrices(tensors: dict[str, Tensor], config: TargetConfig, facts: TargetFacts) -> Iterator[Finding]:
    """Embedding and lm_head that a speculators folder carries, some rows of each against the target's files."""
    vocabulary = None
    if "d2t" in tensors:
        try:
            vocabulary = DraftVocabulary.from_d2t(tensors["d2t"], facts.vocab_size)
        except ValueError as error:
            yield Finding("draft vocabulary", str(error), "export the speculators layout again")
            return
        kept = "t2d" in tensors and torch.equal(tensors["t2d"], vocabulary.t2d)
        yield Finding(
            "draft vocabulary",
            f"{vocabulary.size} of {facts.vocab_size} ids, t2d {'agrees' if kept else 'does not agree'}",
            None if kept else "export the speculators layout again",
        )
    for name, read in (("embed_tokens.weight", read_embedding_rows), ("lm_head.weight", _head_rows)):
        matrix = tensors.get(name)
        if matrix is None:
            yield Finding(f"carried {name}", "none in the folder", "export the speculators layout again")
            continue
        reduced = vocabulary if name == "lm_head.weight" else None
        expected_rows = facts.vocab_size if reduced is None else reduced.size
        if matrix.shape != (expected_rows, facts.hidden_size):
            figure = f"{tuple(matrix.shape)}, {(expected_rows, facts.hidden_size)} in the target"
            yield Finding(f"carried {name}", figure, "export again with the target that the drafter was trained for")
            continue
        rows = torch.linspace(0, expected_rows - 1, min(_ROWS, expected_rows)).long()
        ids = rows if reduced is None else reduced.token_ids_W[rows]
        difference = float(
            (matrix[rows].float() - read(config, facts, ids.tolist()).to(matrix.dtype).float()).abs().max()
        )
        yield Finding(
            f"carried {name}",
            f"largest difference {difference:.3g} from the target's in {len(rows)} rows",
            None if difference == 0 else "export again: these are another model's rows",
        )


def _head_rows(config: TargetConfig, facts: TargetFacts, ids: list[int]) -> Tensor:
    return torch.cat([read_head_rows(config, facts, row, row + 1) for row in ids])


def check_thinking(view: FolderView, config: TargetConfig) -> Finding | None:
    """Whether a chat request as servers send it by default starts an answer as training's conversations did."""
    has_tokenizer = target_file(config, "tokenizer_config.json") is not None
    if view.record is None or "template" not in view.record.recipe or not has_tokenizer:
        return None
    thinking = view.record.recipe["template"].get("thinking")
    tokenizer = load_tokenizer(str(config.path), config.trust_remote_code)
    if tokenizer.chat_template is None:
        return None
    default, trained = (
        _prompt(tokenizer),
        _prompt(tokenizer, **({} if thinking is None else {"enable_thinking": thinking, "thinking": thinking})),
    )
    told = "the template's default" if thinking is None else f"enable_thinking = {str(thinking).lower()}"
    same = default == trained
    return Finding(
        "thinking mode",
        f"trained with {told}; a plain request {'gives the same prompt' if same else 'ends in ' + json.dumps(default[-24:])}",
        None
        if same
        else f'send chat_template_kwargs {{"enable_thinking": {str(thinking).lower()}}} with every request',
    )


def _prompt(tokenizer: PreTrainedTokenizerBase, **variables: Any) -> str:
    turns = [{"role": "user", "content": "Hello"}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **variables))
