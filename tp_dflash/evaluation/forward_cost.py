"""What a target pass costs as a function of its rows, and where more drafted nodes stop paying.

In: seconds of passes of different sizes. Out: yes or no for one more node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ForwardCost:
    """Seconds of one cycle of draft and verification with n drafted nodes: ``base + per_node * n``."""

    base: float
    per_node: float

    def __post_init__(self) -> None:
        if not (self.base > 0 and self.per_node >= 0):
            raise ValueError(
                f"expected a positive base and per_node >= 0, got {self.base} and {self.per_node} seconds; time the "
                "passes again"
            )

    def is_worth(self, num_nodes: int, expected_tokens: float, probability: float) -> bool:
        """Whether one more node, accepted with ``probability``, raises expected tokens per second of the cycle.

        Nodes come in descending probability and the cost is affine, so tokens per second rises to one maximum and then
        falls: the first node that does not pay is the last to ask about.
        """
        return probability * (self.base + self.per_node * num_nodes) >= expected_tokens * self.per_node

    @staticmethod
    def fit(num_nodes: Sequence[int], seconds: Sequence[float]) -> ForwardCost:
        """Least-squares line through measured cycles, kept from a negative slope or a base that is not positive."""
        nodes, times = np.asarray(num_nodes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        per_node = max(0.0, float(np.polyfit(nodes, times, 1)[0])) if len(set(num_nodes)) > 1 else 0.0
        base = float(np.mean(times - per_node * nodes))
        return ForwardCost(max(base, float(np.min(times)) * 0.01), per_node)
