"""What decoding drafts is what training computes for the same text: context rows, positions, windows, label mode."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.evaluation.models import HintedDecoder, make_drafter, make_prompts, make_target, own_greedy
from tp_dflash.blocks import BlockGeometry
from tp_dflash.drafter import Drafter
from tp_dflash.evaluation.decoding import DecodingRules
from tp_dflash.evaluation.decoding_batch import DecodingBatch
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.target import Target

NEW_TOKENS = 20


@cache
def _world() -> tuple[Target, Tensor, list[list[int]], list[list[int]]]:
    model, target, head_VD = make_target(Path(mkdtemp()))
    prompts = make_prompts(6, longest=9)
    return target, head_VD, prompts, own_greedy(model, prompts, NEW_TOKENS, ())


class _Recorder(HintedDecoder):
    """Keeps (prompt, length of its answer so far, the real drafter's logits) of every block."""

    blocks: list[tuple[int, int, Tensor]]

    def _draft(self, batch: DecodingBatch) -> Tensor:
        hinted_PKv = super()._draft(batch)
        logits_PKv = self.draft_head.logits(batch.drafts.draft(batch.last_tokens()))
        for row, answer in enumerate(batch.active):
            prompt = next(i for i, mine in enumerate(batch.answers) if mine is answer)
            self.blocks.append((prompt, len(answer.tokens), logits_PKv[row].clone()))
        return hinted_PKv


def _as_in_training(drafter: Drafter, text: list[int], anchors: list[int]) -> Tensor:
    """Logits (A, K, V) of blocks at these positions of a text, by the forward pass that training runs."""
    target, head_VD, _, _ = _world()
    tokens = torch.tensor(text)
    features_1TF, _, _ = target.run(tokens[None])
    anchor_A = torch.tensor(anchors)
    geometry = BlockGeometry.build(
        torch.zeros_like(tokens),
        torch.arange(len(text)),
        torch.zeros_like(anchor_A),
        anchor_A,
        drafter.shape.block_size,
    )
    mask_D = target.embed(torch.tensor([drafter.shape.mask_token_id]))[0]
    with torch.inference_mode():
        hidden_ND = drafter(features_1TF[0], target.embed(tokens[anchor_A]), mask_D, geometry)
        hidden_ABD = hidden_ND.unflatten(0, (len(anchors), drafter.shape.block_size))
        return hidden_ABD[:, drafter.shape.first_predicted :] @ head_VD.T


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_layers": 3, "sliding_window": 5},
        {"num_layers": 3, "sliding_window": 5, "sliding_causal": False},
        {"label_mode": "next_token"},
        {"rope_theta": 1e6},
    ],
    ids=str,
)
@pytest.mark.parametrize(("tree_budget", "batch_size"), [(None, 1), (None, 6), (12, 6)])
def test_blocks_are_those_of_training(changes: dict[str, Any], tree_budget: int | None, batch_size: int) -> None:
    target, head_VD, prompts, truths = _world()
    drafter = make_drafter(target, **changes)
    streaks: set[int] = set()
    for first in range(0, len(prompts), batch_size):
        decoder = _Recorder(target, head_VD, DecodingRules(NEW_TOKENS, tree_budget=tree_budget), drafter)
        decoder.truths, decoder.blocks = truths[first : first + batch_size], []
        decoder.ranks = torch.Generator().manual_seed(first)
        asked = prompts[first : first + batch_size]
        answers = decoder.speculative(asked, range(len(asked)), Stopwatch(target.device))
        streaks |= {streak for answer in answers for streak in answer.streaks}
        for prompt, text in enumerate(asked):
            blocks = [(length, logits) for index, length, logits in decoder.blocks if index == prompt]
            anchors = [len(text) + length - 1 for length, _ in blocks]
            expected_AKV = _as_in_training(drafter, text + truths[first + prompt], anchors)
            torch.testing.assert_close(
                torch.stack([logits for _, logits in blocks]), expected_AKV, rtol=1e-4, atol=1e-4
            )
    assert len(streaks) > 3, "blocks should be accepted to different lengths"
