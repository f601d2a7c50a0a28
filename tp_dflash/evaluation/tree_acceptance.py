"""Exact acceptance of draft trees on known text, without building a tree and without a target.

In: for many blocks at once, the log-probabilities of each position's most probable tokens and of its label. Out: how many
labels a tree of b nodes would have contained. Runs on any device; no loop over blocks or nodes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def tree_acceptance(top_log_q_NKc: Tensor, label_log_q_NK: Tensor, valid_NK: Tensor, budget: int) -> Tensor:
    """Accepted drafted tokens of N blocks (int64) under trees of ``budget`` nodes (docs/evaluation.md).

    max{d : sum_{i<=d} log q_i(y_i) >= lambda_b}, lambda_b the b-th largest prefix log-product of the block, because the
    best-first tree holds exactly the prefixes that are not below it. A certain token (log q = 0) makes a prefix equal
    to its parent; the tree takes the shallower first, and so does this. top_log_q_NKc: descending log-probabilities of K
    drafted positions, c = min(budget, vocabulary) or more columns. valid_NK: a position that is not valid has no label
    and ends the run there.
    """
    threshold_N, depth_N = prefix_threshold(top_log_q_NKc, budget)
    product_NK = _products(label_log_q_NK)
    depth_K = torch.arange(1, product_NK.shape[1] + 1, device=product_NK.device)
    tied_NK = (product_NK == threshold_N[:, None]) & (depth_K <= depth_N[:, None])
    held_NK = ((product_NK > threshold_N[:, None]) | tied_NK) & valid_NK.bool() & (product_NK > -torch.inf)
    return held_NK.long().cumprod(dim=1).sum(dim=1)


def prefix_threshold(top_log_q_NKc: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """lambda_b of N blocks and the depth of that prefix (int64): the ``budget``-th prefix by descending sum of
    log-probabilities (fp64), equal sums by ascending depth; -inf where there are fewer prefixes.

    The best b prefixes of depth d extend best b prefixes of depth d - 1, and the extension of the i-th of those by the
    j-th token of the position has i * j - 1 others before it: only pairs with i * j <= b are formed.
    """
    if budget < 1:
        raise ValueError(f"expected a tree budget of at least 1, got {budget}; set evaluation.tree_budget")
    top_NKc = top_log_q_NKc[:, :, :budget].double()
    prefix_P, token_P = _pairs(budget, top_NKc.shape[2], top_NKc.device)
    level_Nb = _padded(top_NKc[:, 0], budget)
    best_Nb, depth_Nb = level_Nb, torch.ones_like(level_Nb, dtype=torch.int64)
    for position in range(1, top_NKc.shape[1]):
        extended_NP = level_Nb[:, prefix_P] + top_NKc[:, position, token_P]
        level_Nb = _padded(extended_NP.topk(min(budget, extended_NP.shape[1]), dim=1).values, budget)
        # Stable, so that of equal sums the shallower stays in front.
        best, order = torch.cat([best_Nb, level_Nb], dim=1).sort(dim=1, descending=True, stable=True)
        depths = torch.cat([depth_Nb, torch.full_like(depth_Nb, position + 1)], dim=1).gather(1, order)
        best_Nb, depth_Nb = best[:, :budget], depths[:, :budget]
    return best_Nb[:, budget - 1], depth_Nb[:, budget - 1]


def _products(log_q_NK: Tensor) -> Tensor:
    """Sums added one position after the other, as in a tree: a parallel scan rounds otherwise, and the b-th node itself
    would fall below the threshold that it sets."""
    sums = [log_q_NK[:, 0].double()]
    for log_q_N in log_q_NK.unbind(dim=1)[1:]:
        sums.append(sums[-1] + log_q_N)
    return torch.stack(sums, dim=1)


def _padded(values_Nc: Tensor, size: int) -> Tensor:
    missing = size - values_Nc.shape[1]
    return torch.cat([values_Nc, values_Nc.new_full((values_Nc.shape[0], missing), -torch.inf)], dim=1)


@cache
def _pairs(budget: int, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rank of the prefix, rank of the token), both from 0, whose extension can be among the best ``budget``."""
    pairs = [(i, j) for i in range(budget) for j in range(min(num_tokens, budget // (i + 1)))]
    prefix_P, token_P = torch.tensor(pairs, dtype=torch.int64, device=device).unbind(dim=1)
    return prefix_P, token_P
