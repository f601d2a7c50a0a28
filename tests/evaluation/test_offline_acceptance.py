"""On text that the target wrote, acceptance without decoding is the acceptance of decoding."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.evaluation.models import (
    answered_documents,
    make_drafter,
    make_prompts,
    make_target,
    own_greedy,
    trained_drafter,
)
from tp_dflash.blocks import Document
from tp_dflash.evaluation import Decoder, DecodingRules, StreakTally, offline_acceptance
from tp_dflash.evaluation.offline_acceptance import CHAIN
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.target import Target

NEW_TOKENS = 60
STOPS = (2, 9, 15, 45, 53)


@cache
def _world() -> tuple[Target, Tensor, list[list[int]], list[list[int]]]:
    """Prompts whose answers end by themselves: a block cut by a length limit has no counterpart in the text."""
    model, target, head_VD = make_target(Path(mkdtemp()))
    prompts = make_prompts(60, seed=4)
    answers = own_greedy(model, prompts, NEW_TOKENS, STOPS)
    ended = [pair for pair in zip(prompts, answers, strict=True) if pair[1][-1] in STOPS and len(pair[1]) > 1][:20]
    assert len(ended) == 20
    return target, head_VD, *(list(column) for column in zip(*ended, strict=True))


@pytest.mark.parametrize("changes", [{}, {"label_mode": "next_token", "num_layers": 3, "sliding_window": 5}], ids=str)
def test_equals_decoding_on_the_targets_own_answers(changes: dict[str, Any]) -> None:
    target, head_VD, prompts, answers = _world()
    drafter = trained_drafter(target, head_VD, answered_documents(prompts, answers), **changes)
    budgets = (1, 4, 60)
    offline = offline_acceptance(
        drafter, target, head_VD, answered_documents(prompts, answers), budgets, rows_per_forward=20
    )
    for budget in (CHAIN, *budgets):
        rules = DecodingRules(NEW_TOKENS, STOPS, tree_budget=budget or None)
        decoder = Decoder(target, head_VD, rules, drafter)
        decoded = decoder.speculative(prompts, range(len(prompts)), Stopwatch(target.device))
        assert [answer.tokens for answer in decoded] == answers
        expected = StreakTally.of([streak for answer in decoded for streak in answer.streaks], decoder.num_drafted)
        assert offline.tallies[budget] == expected
    lengths = [offline.tallies[budget].acceptance_length for budget in (1, 4, 60)]
    assert 1.2 < lengths[0] < lengths[1] < lengths[2]
    assert offline.tallies[CHAIN].acceptance_length > lengths[0]
    assert offline.lengths() == {
        "chain": offline.tallies[CHAIN].acceptance_length,
        **{f"tree_{b}": offline.tallies[b].acceptance_length for b in budgets},
    }


def test_every_supervised_stretch_is_walked_by_itself() -> None:
    """Masks with gaps: as many blocks and tokens as the stretches hold when taken as documents of their own."""
    target, head_VD, _, _ = _world()
    drafter = make_drafter(target)
    tokens = torch.tensor(make_prompts(1, seed=8, longest=1)[0] * 40) + torch.arange(40) % 7
    mask = torch.zeros(40, dtype=torch.bool)
    stretches = [(3, 9), (10, 11), (12, 14), (20, 40)]
    for start, stop in stretches:
        mask[start:stop] = True
    together = offline_acceptance(drafter, target, head_VD, [Document(0, tokens, mask)], (8,))
    apart = []
    for index, (start, stop) in enumerate(stretches):
        own = torch.zeros(stop, dtype=torch.bool)
        own[start:] = True
        apart.append(Document(index, tokens[:stop], own))
    assert together.tallies == offline_acceptance(drafter, target, head_VD, apart, (8,)).tallies
    for tally in together.tallies.values():
        committed = tally.num_blocks + tally.num_accepted
        assert committed == sum(stop - start - 1 for start, stop in stretches)


def test_nothing_supervised_counts_nothing_and_the_drafter_is_given_back() -> None:
    target, head_VD, _, _ = _world()
    drafter = make_drafter(target).train()
    bare = Document(0, torch.arange(3, 12), torch.zeros(9, dtype=torch.bool))
    assert offline_acceptance(drafter, target, head_VD, [bare]).tallies[CHAIN].num_blocks == 0
    assert offline_acceptance(drafter, target, head_VD, []).tallies[CHAIN].num_blocks == 0
    assert drafter.training
    assert drafter.attention == "auto"
    with pytest.raises(ValueError, match=r"1\.\.1024"):
        offline_acceptance(drafter, target, head_VD, [], (0,))
