"""Buckets partition the documents, keep the limit, cost least, and follow from the lengths alone."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tp_dflash.target import plan_buckets

LENGTHS = st.lists(st.integers(1, 60), max_size=9)


def _cost(buckets: list[list[int]], lengths: list[int], overhead: int) -> int:
    return sum(len(bucket) * max(lengths[i] for i in bucket) + overhead for bucket in buckets)


def _allowed(bucket: list[int], lengths: list[int], limit: int) -> bool:
    return len(bucket) == 1 or len(bucket) * max(lengths[i] for i in bucket) <= limit


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.integers(0, 40))
def test_cheapest_partition_in_order_of_length(lengths: list[int], limit: int, overhead: int) -> None:
    buckets = plan_buckets(lengths, limit, overhead)
    assert sorted(itertools.chain(*buckets)) == list(range(len(lengths)))
    assert all(_allowed(bucket, lengths, limit) for bucket in buckets)
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    costs = []
    for cuts in itertools.product([False, True], repeat=max(0, len(order) - 1)):
        parts: list[list[int]] = [[]] if order else []
        for i, cut in zip(order, (False, *cuts), strict=False):
            if cut:
                parts.append([])
            parts[-1].append(i)
        if all(_allowed(part, lengths, limit) for part in parts):
            costs.append(_cost(parts, lengths, overhead))
    assert _cost(buckets, lengths, overhead) == min(costs)


def test_equal_lengths_fill_whole_forwards() -> None:
    assert plan_buckets([2048] * 32, 16384, 256) == [list(range(start, start + 8)) for start in (0, 8, 16, 24)]


def test_a_document_beyond_the_limit_runs_alone() -> None:
    assert plan_buckets([5, 100, 5], 20, 3) == [[1], [0, 2]]
