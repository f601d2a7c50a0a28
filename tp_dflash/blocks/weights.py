"""How much each block position counts in the loss, before anything is known about the drafter's predictions."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
from torch import Tensor

# (block size, gamma) pairs of docs/numerics.md: the decay is slower for longer blocks.
_GAMMA_TABLE = ((8, 4.0), (10, 5.0), (16, 7.0), (24, 10.0))


def default_gamma(block_size: int) -> float:
    """Decay constant for a block size: 4, 5, 7, 10 for B = 8, 10, 16, 24, on straight lines through those elsewhere."""
    for (small, low), (large, high) in itertools.pairwise(_GAMMA_TABLE):
        if block_size <= large:
            return max(1.0, low + (high - low) * (block_size - small) / (large - small))
    size, gamma = _GAMMA_TABLE[-1]
    return gamma * block_size / size


def block_position_weights(
    block_size: int,
    scheme: Literal["decay", "uniform"],
    gamma: float | None = None,
    first_trained: int = 1,
) -> Tensor:
    """Weight u_k of every block position, (B,) fp32: exp(-(k - first) / gamma), or 1; positions before ``first`` get 0.

    ``first_trained`` is 1 where the label of position k is the token at k itself, 0 where it is the next token.
    """
    k_B = torch.arange(block_size, dtype=torch.float32)
    trained_B = k_B >= first_trained
    if scheme == "uniform":
        return trained_B.float()
    gamma = default_gamma(block_size) if gamma is None else gamma
    if not (gamma > 0 and math.isfinite(gamma)):
        raise ValueError(f"expected a positive decay constant, got gamma {gamma}; set objective.gamma above 0")
    return torch.where(trained_B, torch.exp(-(k_B - first_trained) / gamma), 0.0)
