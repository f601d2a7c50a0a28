"""How a pack's documents are grouped into right-padded forwards.

In: document lengths and two limits. Out: groups of documents of like length. A pure function of the pack, so that its
features have the same bits whichever target rank computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def plan_buckets(lengths: Sequence[int], token_limit: int, overhead: int) -> list[list[int]]:
    """Partition documents 0..n-1 into forwards with the least total cost; returns the documents of each forward.

    A forward of r documents, the longest of length s, costs r x s + overhead tokens and may hold at most ``token_limit``
    of them (a longer document runs alone). Documents are taken in order of length, longest first, ties by number, and
    the cuts are found by dynamic programming over that order.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    sizes = np.asarray(lengths, dtype=np.int64)[order]
    best = np.zeros(len(sizes) + 1, dtype=np.int64)
    cut = np.zeros(len(sizes) + 1, dtype=np.int64)
    for end in range(1, len(sizes) + 1):
        starts = np.arange(end)
        padded = (end - starts) * sizes[:end]
        allowed = (padded <= token_limit) | (starts == end - 1)
        cost = np.where(allowed, best[:end] + padded + overhead, np.iinfo(np.int64).max)
        cut[end] = np.argmin(cost)
        best[end] = cost[cut[end]]
    buckets, end = [], len(sizes)
    while end > 0:
        buckets.append([int(document) for document in order[cut[end] : end]])
        end = int(cut[end])
    return buckets[::-1]
