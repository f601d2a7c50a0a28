"""Greedy speculative output equals the target's own, token for token, with chains and trees, for several families."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.evaluation.models import HintedDecoder, make_drafter, make_prompts, make_target, own_generate, own_greedy
from tp_dflash.evaluation.answer import Answer
from tp_dflash.evaluation.decoding import Decoder, DecodingRules
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.target import Target

CPU = torch.device("cpu")
NEW_TOKENS = 24
STOPS = (2, 9, 15, 45, 53)


@cache
def _world(model_type: str) -> tuple[PreTrainedModel, Target, Tensor]:
    return make_target(Path(mkdtemp()), model_type)


@cache
def _truths(model_type: str, count: int) -> tuple[list[list[int]], list[list[int]]]:
    prompts = make_prompts(count)
    return prompts, own_greedy(_world(model_type)[0], prompts, NEW_TOKENS, STOPS)


def _decode(model_type: str, count: int, batch_size: int, hinted: bool = True, **rules: Any) -> list[Answer]:
    _, target, head_VD = _world(model_type)
    prompts, truths = _truths(model_type, count)
    settings = DecodingRules(max_new_tokens=NEW_TOKENS, stop_tokens=STOPS, **rules)
    answers = []
    for first in range(0, count, batch_size):
        keys = range(first, min(count, first + batch_size))
        kind = HintedDecoder if hinted else Decoder
        decoder = kind(target, head_VD, settings, make_drafter(target))
        if isinstance(decoder, HintedDecoder):
            decoder.truths = [truths[key] for key in keys]
            decoder.ranks = torch.Generator().manual_seed(first)
        answers += decoder.speculative([prompts[key] for key in keys], keys, Stopwatch(CPU))
    return answers


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3_next"])
def test_the_reference_is_what_transformers_generates(model_type: str) -> None:
    prompts, truths = _truths(model_type, 10)
    for prompt, truth in zip(prompts[:4], truths, strict=False):
        assert own_generate(_world(model_type)[0], prompt, NEW_TOKENS, STOPS) == truth


@pytest.mark.parametrize(
    ("tree_budget", "batch_size"),
    [(None, 1), (16, 1), *((budget, 25) for budget in (None, 1, 2, 3, 5, 8, 13, 16, 64, 256))],
)
def test_equals_the_targets_own_on_a_hundred_prompts(tree_budget: int | None, batch_size: int) -> None:
    _, truths = _truths("llama", 100)
    answers = _decode("llama", 100, batch_size, tree_budget=tree_budget)
    assert [answer.tokens for answer in answers] == truths
    streaks = [streak for answer in answers for streak in answer.streaks]
    assert len(set(streaks)) >= min(3, 1 + (tree_budget or 3)), "the drafts were too alike to test anything"
    assert len({len(truth) for truth in truths}) > 5, "answers should end at different lengths"


def test_the_largest_tree_too() -> None:
    answers = _decode("llama", 10, batch_size=5, tree_budget=1024)
    assert [answer.tokens for answer in answers] == _truths("llama", 10)[1]


@pytest.mark.parametrize("model_type", ["qwen3", "mistral", "gemma3_text", "cohere", "granite"])
@pytest.mark.parametrize("tree_budget", [None, 20])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_equals_the_targets_own_in_other_families(model_type: str, tree_budget: int | None, batch_size: int) -> None:
    answers = _decode(model_type, 10, batch_size, tree_budget=tree_budget)
    assert [answer.tokens for answer in answers] == _truths(model_type, 10)[1]


def test_recurrent_targets_go_back_over_what_was_kept() -> None:
    answers = _decode("qwen3_next", 10, batch_size=1)
    assert [answer.tokens for answer in answers] == _truths("qwen3_next", 10)[1]
    assert len({streak for answer in answers for streak in answer.streaks}) > 3


def test_recurrent_targets_refuse_batches_and_trees_by_name() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.batch_size = 1"):
        _decode("qwen3_next", 10, batch_size=2)
    with pytest.raises(ValueError, match=r"evaluation\.tree_budget"):
        _decode("qwen3_next", 10, batch_size=1, tree_budget=4)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_real_random_drafter_changes_nothing(batch_size: int) -> None:
    answers = _decode("llama", 20, batch_size, hinted=False)
    assert [answer.tokens for answer in answers] == _truths("llama", 20)[1]


@pytest.mark.parametrize("batch_size", [1, 7])
def test_plain_decoding_is_the_targets_own_too(batch_size: int) -> None:
    _, target, head_VD = _world("llama")
    prompts, truths = _truths("llama", 20)
    decoder = Decoder(target, head_VD, DecodingRules(max_new_tokens=NEW_TOKENS, stop_tokens=STOPS))
    for first in range(0, 20, batch_size):
        keys = range(first, min(20, first + batch_size))
        answers = decoder.plain([prompts[key] for key in keys], keys, Stopwatch(CPU))
        assert [answer.tokens for answer in answers] == [truths[key] for key in keys]
        assert all(answer.streaks == [] for answer in answers)
