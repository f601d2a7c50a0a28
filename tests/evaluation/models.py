"""Tiny targets with lively text, drafters for them, and a decoder whose drafts are right as often as a test wants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.target.models import VOCAB, load_target, make_model, save_model
from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, Pack
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.config.target import TargetConfig
from tp_dflash.drafter import Drafter, DrafterShape
from tp_dflash.evaluation.decoding import Decoder
from tp_dflash.evaluation.decoding_batch import DecodingBatch
from tp_dflash.target import Target, read_head_rows

MASK = VOCAB - 1


def save_target(folder: Path, model_type: str = "llama", **fields: Any) -> tuple[PreTrainedModel, TargetConfig]:
    """Weights are large, so that text does not fall into a loop at once and the best two logits are far apart."""
    spread = 0.1 if model_type == "gemma3_text" else 0.35
    model = make_model(model_type, **({"initializer_range": spread} | fields))
    return model, save_model(model, folder)


def open_target(config: TargetConfig) -> tuple[Target, Tensor]:
    """A target loaded from its folder, and its whole lm_head."""
    target = load_target(config)
    return target, read_head_rows(config, target.facts, 0, target.facts.vocab_size)


def make_target(folder: Path, model_type: str = "llama", **fields: Any) -> tuple[PreTrainedModel, Target, Tensor]:
    """The model itself, the target loaded from its folder, and its lm_head."""
    model, config = save_target(folder, model_type, **fields)
    return model, *open_target(config)


def make_drafter(target: Target, block_size: int = 6, **changes: Any) -> Drafter:
    settings = {
        "mask_token_id": MASK,
        "block_size": block_size,
        "num_layers": 2,
        "target_layer_ids": [0, 2, 3],
    } | changes
    drafter = Drafter(DrafterShape.of(DrafterConfig(**settings), target.facts))
    drafter.initialise(seed=5, std=0.3)
    return drafter


def answered_documents(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[Document]:
    """Prompts with their answers, only the answers supervised."""
    return [
        Document(
            index,
            torch.tensor([*prompt, *answer]),
            torch.arange(len(prompt) + len(answer)) >= len(prompt),
        )
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def trained_drafter(
    target: Target, head_VD: Tensor, documents: Sequence[Document], steps: int = 60, **changes: Any
) -> Drafter:
    """A drafter that half knows these documents: a few steps of plain cross-entropy on all their blocks."""
    drafter = make_drafter(target, **changes)
    shape = drafter.shape
    pack = Pack(0, 0, tuple(documents))
    layout = BlockLayout.build(pack, AnchorCaps(pack.num_tokens), 0, shape.block_size, shape.label_mode)
    features = target.features(layout)
    geometry = BlockGeometry.build(
        pack.document_index_T, pack.position_T, layout.anchor_document_A, layout.anchor_position_A, shape.block_size
    )
    mask_D = target.embed(torch.tensor([shape.mask_token_id]))[0].clone()
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    for _ in range(steps):
        hidden_ND = drafter(features.features_TF, features.anchor_embeddings_AD, mask_D, geometry)
        logits_NV = hidden_ND[layout.valid_N] @ head_VD.T
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits_NV, layout.labels_N[layout.valid_N]).backward()
        optimizer.step()
    return drafter


def make_prompts(count: int, seed: int = 0, longest: int = 12) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, MASK, (length,), generator=generator).tolist() for length in lengths]


def own_greedy(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_tokens: Collection[int]
) -> list[list[int]]:
    """The model's own greedy continuations, from whole forward passes without any cache."""
    texts = [list(prompt) for prompt in prompts]
    answers: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    for _ in range(max_new_tokens):
        tokens_PS = torch.zeros(len(going), max(len(texts[i]) for i in going), dtype=torch.int64)
        for row, i in enumerate(going):
            tokens_PS[row, : len(texts[i])] = torch.tensor(texts[i])
        with torch.no_grad():
            logits_PSV = model(tokens_PS, use_cache=False).logits
        for row, i in enumerate(going):
            token = int(logits_PSV[row, len(texts[i]) - 1].argmax())
            texts[i].append(token)
            answers[i].append(token)
        going = [i for i in going if answers[i][-1] not in stop_tokens]
        if not going:
            break
    return answers


def own_generate(
    model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int, stop_tokens: Collection[int]
) -> list[int]:
    """The same by transformers' generate, with its own cache."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=list(stop_tokens),
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


class HintedDecoder(Decoder):
    """Drafts with the real drafter, then moves the true token of each position to a rank that a generator draws.

    truths: for each prompt, its whole answer. So runs of every length, and trees that beat chains, occur.
    """

    truths: Sequence[Sequence[int]]
    ranks: torch.Generator

    def _draft(self, batch: DecodingBatch) -> Tensor:
        logits_PKv = super()._draft(batch)
        for row, answer in enumerate(batch.active):
            truth = self.truths[next(i for i, mine in enumerate(batch.answers) if mine is answer)]
            for k in range(logits_PKv.shape[1]):
                place = len(answer.tokens) + k
                if place < len(truth):
                    rank = (0, 0, 0, 1, 2)[int(torch.randint(0, 5, (1,), generator=self.ranks))]
                    others = logits_PKv[row, k].sort(descending=True).values
                    logits_PKv[row, k, truth[place]] = others[rank] + (4.0 if rank == 0 else 1e-3)
        return logits_PKv
