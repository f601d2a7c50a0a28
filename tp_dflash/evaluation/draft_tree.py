"""Draft trees: which continuations of an anchor the target verifies in one pass.

In: a drafter's log-probabilities of one block. Out: the prefixes with the largest probability products, as a tree whose
parents precede their children, and who sees whom in it. No model, no cache, no process group; all on the CPU.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tp_dflash.evaluation.forward_cost import ForwardCost

MAX_BUDGET = 1024


@dataclass(frozen=True)
class DraftTree:
    """n drafted nodes below an anchor, numbered 1..n by decreasing probability; node 0 is the anchor itself.

    tokens: token id of nodes 1..n. parents: their parent's number, smaller than their own. depths: 1 for the anchor's
    children. log_products: sum of the drafter's log-probabilities from the anchor's child down to the node.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    log_products: tuple[float, ...]

    @property
    def num_nodes(self) -> int:
        """n, without the anchor."""
        return len(self.tokens)

    @property
    def expected_streak(self) -> float:
        """Accepted tokens that the drafter itself expects: the sum of its nodes' probability products."""
        return math.fsum(map(math.exp, self.log_products))

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """(parent, token) -> node."""
        return {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True), start=1)
        }

    @cached_property
    def visible_QQ(self) -> npt.NDArray[np.bool_]:
        """Row q sees column k: k is q or an ancestor of q. Q = n + 1 rows, the anchor first."""
        seen = np.eye(self.num_nodes + 1, dtype=np.bool_)
        for node, parent in enumerate(self.parents, start=1):
            seen[node] |= seen[parent]
        return seen

    def path(self, node: int) -> list[int]:
        """Nodes from the anchor's child down to ``node``; empty for the anchor."""
        nodes = []
        while node:
            nodes.append(node)
            node = self.parents[node - 1]
        return nodes[::-1]

    @staticmethod
    def chain(tokens: Sequence[int], log_q: Sequence[float]) -> DraftTree:
        """One token a block position, each the parent of the next."""
        count = len(tokens)
        products = tuple(itertools.accumulate(log_q))
        return DraftTree(tuple(tokens), tuple(range(count)), tuple(range(1, count + 1)), products)

    @staticmethod
    def best_first(
        tokens_Kc: Sequence[Sequence[int]],
        log_q_Kc: Sequence[Sequence[float]],
        budget: int,
        cost: ForwardCost | None = None,
    ) -> DraftTree:
        """The ``budget`` prefixes with the largest probability products (docs/evaluation.md).

        A block's positions are drafted independently, so a prefix's probability is the product of its tokens' own.
        Row k of the arguments lists the most probable tokens of the k-th drafted position in descending order and their
        log-probabilities; with at least ``budget`` of them a position (or the whole vocabulary) the result is exact.
        cost: stop before the budget where one more node would lower expected tokens per second. Fewer nodes than the
        budget come back when there are no more prefixes of positive probability.
        """
        check_budget(budget)
        nodes: list[tuple[int, int, int, float]] = []
        expected_tokens = 1.0
        # An open prefix: (-log product, block position, order of discovery, rank there, parent, parent's log product).
        # Of equal products the shallower goes first: the order that tree_acceptance counts in.
        opened = [(-log_q_Kc[0][0], 0, 0, 0, 0, 0.0)]
        discovered = 1
        while opened and len(nodes) < budget:
            negated, position, _, rank, parent, above = heapq.heappop(opened)
            probability = math.exp(-negated)
            if probability == 0.0 or (cost and not cost.is_worth(len(nodes), expected_tokens, probability)):
                break
            nodes.append((tokens_Kc[position][rank], parent, position + 1, -negated))
            expected_tokens += probability
            if rank + 1 < len(log_q_Kc[position]):
                sibling = -(above + log_q_Kc[position][rank + 1])
                heapq.heappush(opened, (sibling, position, discovered, rank + 1, parent, above))
            if position + 1 < len(log_q_Kc):
                child = -(-negated + log_q_Kc[position + 1][0])
                heapq.heappush(opened, (child, position + 1, discovered + 1, 0, len(nodes), -negated))
            discovered += 2
        tokens, parents, depths, products = zip(*nodes, strict=True) if nodes else ((), (), (), ())
        return DraftTree(tokens, parents, depths, products)


def check_budget(budget: int) -> None:
    """ValueError unless trees of so many nodes are built."""
    if not 1 <= budget <= MAX_BUDGET:
        raise ValueError(f"expected a tree budget within 1..{MAX_BUDGET}, got {budget}; set evaluation.tree_budget")
