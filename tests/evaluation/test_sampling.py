"""Sampled output has the target's own distribution: chi-square over 20,000 short answers, for every rule of acceptance."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.evaluation.models import make_drafter, make_target
from tp_dflash.drafter import Drafter
from tp_dflash.evaluation.choices import draw, rejection_choices
from tp_dflash.evaluation.decoding import Acceptance, Decoder, DecodingRules
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.target import Target

VOCABULARY, NEW_TOKENS, SAMPLES, BATCH = 8, 3, 20_000, 2_500
PROMPT = [3, 5, 4]
Words = dict[tuple[int, ...], float]


@cache
def _world() -> tuple[PreTrainedModel, Target, Tensor, Drafter]:
    model, target, head_VD = make_target(Path(mkdtemp()), vocab_size=VOCABULARY, initializer_range=0.12)
    return model, target, head_VD, make_drafter(target, block_size=3, mask_token_id=VOCABULARY - 1)


@cache
def _expected(temperature: float) -> Words:
    """Probability of every continuation, from the model's own forward passes over all of them."""
    words = list(itertools.product(range(VOCABULARY), repeat=NEW_TOKENS))
    tokens = torch.tensor([[*PROMPT, *word] for word in words])
    with torch.no_grad():
        logits = _world()[0](tokens, use_cache=False).logits[:, len(PROMPT) - 1 : -1].double()
    log_p = torch.log_softmax(logits / temperature, dim=-1).gather(2, tokens[:, len(PROMPT) :, None]).sum(dim=(1, 2))
    return dict(zip(words, log_p.exp().tolist(), strict=True))


def _deviation(counts: Counter[tuple[int, ...]], expected: Words) -> float:
    """Chi-square in standard deviations from its mean (Wilson-Hilferty), cells below 5 expected counts joined."""
    total = sum(counts.values())
    common = {word: p * total for word, p in expected.items() if p * total >= 5}
    cells = [(counts[word], mean) for word, mean in common.items()]
    rare = total - sum(common.values())
    if rare >= 5:
        cells.append((total - sum(counts[word] for word in common), rare))
    chi_square = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = len(cells) - 1
    assert freedom > 30, "the distribution is too narrow to test anything"
    return ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@cache
def _sampled(
    temperature: float, acceptance: Acceptance, tree_budget: int | None
) -> tuple[Counter[tuple[int, ...]], set[int]]:
    _, target, head_VD, drafter = _world()
    rules = DecodingRules(NEW_TOKENS, temperature=temperature, acceptance=acceptance, tree_budget=tree_budget, seed=1)
    decoder = Decoder(target, head_VD, rules, drafter)
    counts: Counter[tuple[int, ...]] = Counter()
    streaks: set[int] = set()
    for first in range(0, SAMPLES, BATCH):
        answers = decoder.speculative([PROMPT] * BATCH, range(first, first + BATCH), Stopwatch(target.device))
        counts.update(tuple(answer.tokens) for answer in answers)
        streaks |= {streak for answer in answers for streak in answer.streaks}
    return counts, streaks


@pytest.mark.parametrize(
    ("temperature", "acceptance", "tree_budget"),
    [
        (0.7, "rejection", None),
        (1.0, "rejection", None),
        (0.7, "match", None),
        (1.0, "match", None),
        (0.7, "match", 9),
    ],
)
def test_answers_have_the_targets_distribution(
    temperature: float, acceptance: Acceptance, tree_budget: int | None
) -> None:
    counts, streaks = _sampled(temperature, acceptance, tree_budget)
    assert sum(counts.values()) == SAMPLES
    assert streaks == {0, 1, 2}, "drafts of every length should be accepted"
    assert abs(_deviation(counts, _expected(temperature))) < 4
    other = _expected(1.7 - temperature)
    assert _deviation(counts, other) > 20, "the test could not tell another temperature"


def test_plain_sampling_has_it_too() -> None:
    _, target, head_VD, _ = _world()
    decoder = Decoder(target, head_VD, DecodingRules(NEW_TOKENS, temperature=1.0))
    counts: Counter[tuple[int, ...]] = Counter()
    for first in range(0, SAMPLES, BATCH):
        answers = decoder.plain([PROMPT] * BATCH, range(first, first + BATCH), Stopwatch(target.device))
        counts.update(tuple(answer.tokens) for answer in answers)
    assert abs(_deviation(counts, _expected(1.0))) < 4


def test_rejection_accepts_the_overlap_of_both_distributions() -> None:
    """Exact by enumeration of a fine grid of uniform numbers: P(choice = v) = p(v), P(accept) = sum_v min(p, q)."""
    p = torch.tensor([0.5, 0.3, 0.2, 0.0])
    q = torch.tensor([0.1, 0.3, 0.35, 0.25])
    grid = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
    chosen = torch.zeros(4, dtype=torch.float64)
    accepted = 0.0
    for drafted in range(4):
        accept, choice = torch.meshgrid(grid, grid, indexing="ij")
        size = accept.numel()
        rows = torch.stack([p.log(), p.log()]).expand(size, -1, -1)
        uniform = torch.stack([choice.flatten(), choice.flatten()], dim=1)
        got = rejection_choices(
            rows, 1.0, torch.full((size, 1), drafted), q.expand(size, 1, -1), accept.flatten()[:, None], uniform
        )
        share = torch.bincount(got[:, 0], minlength=4).double() / size
        chosen += q[drafted] * share
        accepted += float(q[drafted] * share[drafted])
    torch.testing.assert_close(chosen, p.double(), rtol=0, atol=0.01)
    assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.01)


def test_what_has_no_weight_is_never_drawn() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.2499999, 0.25, 1.0 - 2**-53], dtype=torch.float64)
    assert draw(weights, uniform).tolist() == [1, 1, 3, 3]
    tail = torch.cat([torch.ones(1), torch.full((300_000,), 1e-9)])
    assert draw(tail[None], torch.tensor([1.0 - 2**-53], dtype=torch.float64)).tolist() == [300_000]
