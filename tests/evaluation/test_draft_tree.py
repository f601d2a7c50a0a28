"""Draft trees: best-first order, shape, visibility, and the cost-aware stop, against enumeration of all prefixes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tp_dflash.evaluation.draft_tree import DraftTree
from tp_dflash.evaluation.forward_cost import ForwardCost


def _log_q(seed: int, positions: int, vocabulary: int, sharpness: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(sharpness * torch.randn(positions, vocabulary, generator=generator), dim=-1).double()


def _tree(log_q_KV: Tensor, budget: int, cost: ForwardCost | None = None) -> DraftTree:
    top = log_q_KV.topk(min(budget, log_q_KV.shape[1]), dim=1)
    return DraftTree.best_first(top.indices.tolist(), top.values.tolist(), budget, cost)


def _prefixes(log_q_KV: Tensor) -> dict[tuple[int, ...], float]:
    positions, vocabulary = log_q_KV.shape
    table = log_q_KV.tolist()
    return {
        tokens: sum(table[k][token] for k, token in enumerate(tokens))
        for depth in range(1, positions + 1)
        for tokens in itertools.product(range(vocabulary), repeat=depth)
    }


def _words(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[n - 1] for n in tree.path(node)) for node in range(1, tree.num_nodes + 1)]


@pytest.mark.parametrize("budget", [1, 2, 7, 40, 200])
def test_holds_the_most_probable_prefixes_in_order(budget: int) -> None:
    for seed in range(20):
        log_q_KV = _log_q(seed, positions=4, vocabulary=4)
        expected = sorted(_prefixes(log_q_KV).items(), key=lambda item: -item[1])[:budget]
        tree = _tree(log_q_KV, budget)
        assert _words(tree) == [tokens for tokens, _ in expected]
        assert tree.log_products == pytest.approx([product for _, product in expected], abs=1e-12)
        assert tree.expected_streak == pytest.approx(sum(math.exp(product) for _, product in expected))


def test_holds_every_prefix_when_the_budget_is_larger() -> None:
    log_q_KV = _log_q(3, positions=3, vocabulary=3)
    assert sorted(_words(_tree(log_q_KV, 1024))) == sorted(_prefixes(log_q_KV))


def test_leaves_out_what_has_no_probability() -> None:
    log_q_KV = torch.log(torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    assert _words(_tree(log_q_KV, 16)) == [(0,), (0, 0), (0, 1)]


def test_parents_come_first_and_a_node_sees_its_ancestors_and_itself() -> None:
    tree = _tree(_log_q(5, positions=5, vocabulary=6), 64)
    assert all(parent < node for node, parent in enumerate(tree.parents, start=1))
    for node in range(tree.num_nodes + 1):
        path = tree.path(node)
        assert tree.visible_QQ[node].nonzero()[0].tolist() == sorted({0, node, *path})
        assert len(path) == (tree.depths[node - 1] if node else 0)
        if node:
            assert tree.children[tree.parents[node - 1], tree.tokens[node - 1]] == node


def test_a_chain_is_a_tree_of_one_branch() -> None:
    chain = DraftTree.chain([7, 3, 9], [-0.5, -0.25, -1.0])
    assert _words(chain) == [(7,), (7, 3), (7, 3, 9)]
    assert chain.log_products == (-0.5, -0.75, -1.75)
    assert chain.visible_QQ.tolist() == [[column <= row for column in range(4)] for row in range(4)]
    assert DraftTree.chain([], []).num_nodes == 0


@pytest.mark.parametrize("budget", [0, -3, 1025])
def test_refuses_a_budget_out_of_range(budget: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.1024.*evaluation\.tree_budget"):
        DraftTree.best_first([[0], [1]], [[-0.1], [-0.2]], budget)


@pytest.mark.parametrize("per_node", [0.0, 1e-4, 0.01, 0.2, 3.0])
def test_stops_where_expected_tokens_per_second_are_highest(per_node: float) -> None:
    cost = ForwardCost(base=1.0, per_node=per_node)
    for seed in range(10):
        log_q_KV = _log_q(seed, positions=4, vocabulary=5, sharpness=3.0)
        whole = _tree(log_q_KV, 300)
        gains = [1.0, *(1.0 + s for s in itertools.accumulate(map(math.exp, whole.log_products)))]
        rates = [gain / (cost.base + cost.per_node * nodes) for nodes, gain in enumerate(gains)]
        stopped = _tree(log_q_KV, 300, cost)
        assert rates[stopped.num_nodes] == pytest.approx(max(rates), rel=1e-9)
        assert stopped.log_products == whole.log_products[: stopped.num_nodes]


def test_a_line_through_measured_passes() -> None:
    cost = ForwardCost.fit([0, 16, 64], [0.10, 0.10 + 16 * 0.002, 0.10 + 64 * 0.002])
    assert (cost.base, cost.per_node) == pytest.approx((0.10, 0.002))
    assert ForwardCost.fit([0, 16, 64], [0.10, 0.09, 0.08]).per_node == 0.0
    with pytest.raises(ValueError, match="positive base"):
        ForwardCost(0.0, 1.0)
