"""Offline tree acceptance equals what the heap's tree really holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tp_dflash.evaluation.draft_tree import DraftTree
from tp_dflash.evaluation.tree_acceptance import prefix_threshold, tree_acceptance


def _case(generator: torch.Generator, num_blocks: int, positions: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities of mixed sharpness and labels drawn from them, so that runs of every length occur."""
    sharpness = 0.2 + 6.0 * torch.rand(num_blocks, 1, 1, generator=generator)
    log_q = torch.log_softmax(sharpness * torch.randn(num_blocks, positions, vocabulary, generator=generator), dim=-1)
    labels = torch.multinomial(log_q.exp().flatten(0, 1), 1, generator=generator).view(num_blocks, positions)
    return log_q, labels


def _held(tree: DraftTree, labels: list[int]) -> int:
    node = depth = 0
    for label in labels:
        if (node, label) not in tree.children:
            break
        node, depth = tree.children[node, label], depth + 1
    return depth


def test_equals_the_heap_on_five_thousand_random_cases() -> None:
    generator = torch.Generator().manual_seed(17)
    compared, by_depth = 0, torch.zeros(16, dtype=torch.int64)
    for batch in range(100):
        positions, vocabulary = 1 + batch % 9, (2, 3, 11, 64)[batch % 4]
        budget = int(torch.randint(1, 1 + (16, 64, 256, 1024)[batch // 25], (1,), generator=generator))
        log_q_NKV, labels_NK = _case(generator, 50, positions, vocabulary)
        top = log_q_NKV.topk(min(budget, vocabulary), dim=-1)
        label_log_q = log_q_NKV.gather(2, labels_NK[:, :, None]).squeeze(2)
        got = tree_acceptance(top.values, label_log_q, torch.ones_like(labels_NK), budget).tolist()
        for n in range(50):
            tree = DraftTree.best_first(top.indices[n].tolist(), top.values[n].tolist(), budget)
            expected = _held(tree, labels_NK[n].tolist())
            assert got[n] == expected, (batch, n, budget)
            by_depth[expected] += 1
            compared += 1
    assert compared == 5000
    assert (by_depth[:5] > 50).all(), f"the cases are too alike: {by_depth.tolist()}"


def test_an_invalid_position_ends_the_run() -> None:
    log_q = torch.log(torch.tensor([[[0.9, 0.1]] * 3]))
    valid = torch.tensor([[True, False, True]])
    assert tree_acceptance(log_q, log_q[:, :, 0], valid, 8).tolist() == [1]
    assert tree_acceptance(log_q, log_q[:, :, 0], torch.ones_like(valid), 8).tolist() == [3]


def test_fewer_prefixes_than_the_budget_hold_every_possible_text() -> None:
    log_q_NKV, labels_NK = _case(torch.Generator().manual_seed(2), 40, 3, 2)
    label_log_q = log_q_NKV.gather(2, labels_NK[:, :, None]).squeeze(2)
    assert prefix_threshold(log_q_NKV.sort(dim=-1, descending=True).values, 15)[0].tolist() == [-torch.inf] * 40
    got = tree_acceptance(log_q_NKV.sort(descending=True).values, label_log_q, torch.ones_like(labels_NK), 15)
    assert got.tolist() == [3] * 40


def test_certain_tokens_tie_with_their_parents_and_still_fill_only_the_budget() -> None:
    log_q = torch.log(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.4], [1.0, 0.0], [1.0, 0.0]]))[None]
    labels = torch.tensor([[0, 0, 1, 0, 0]])
    label_log_q = log_q.gather(2, labels[:, :, None]).squeeze(2)
    for budget in range(1, 12):
        top = log_q.topk(min(budget, 2), dim=-1)
        tree = DraftTree.best_first(top.indices[0].tolist(), top.values[0].tolist(), budget)
        got = tree_acceptance(top.values, label_log_q, torch.ones_like(labels), budget)
        assert got.tolist() == [_held(tree, labels[0].tolist())], budget


def test_an_impossible_label_is_never_held() -> None:
    log_q = torch.log(torch.tensor([[[1.0, 0.0]]]))
    assert tree_acceptance(log_q, log_q[:, :, 1], torch.ones(1, 1), 4).tolist() == [0]


def test_refuses_an_empty_budget() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        prefix_threshold(torch.zeros(1, 2, 3), 0)
