"""The sharded loss equals the dense fp64 oracle: every objective, every number of ranks, every awkward shape."""

from __future__ import annotations

from typing import Any

import pytest

from tests.head.problem import Problem, assert_equals_oracle, sharded
from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective

TERMS = ("ce", "kl", "reverse_kl", "js", "tv", "lk", "nla", "cap")
BLEND = {"ce": 0.3, "kl": 0.2, "reverse_kl": 0.1, "js": 0.4, "tv": 0.2, "lk": 0.3, "nla": 0.2, "cap": 0.1}


def only(term: str, **settings: Any) -> Objective:
    return Objective(**{"ce": 0.0, "kl": 0.0, term: 1.0, **settings})


def _all(rank: int, problems: list[Problem]) -> list[dict[str, Any]]:
    return [sharded(rank, problem) for problem in problems]


def check(problems: list[Problem]) -> None:
    """Run problems of one size in one start of the ranks."""
    size = problems[0].size
    by_rank = run_ranks(_all, size, problems) if size > 1 else [_all(0, problems)]
    for i, problem in enumerate(problems):
        assert_equals_oracle(problem, [results[i] for results in by_rank])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_objective(size: int) -> None:
    check(
        [Problem(size, objective=only(term, temperature=1.3)) for term in TERMS]
        + [Problem(size, objective=Objective(**BLEND), upstream=3.7)]
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_buckets_shared_teacher_rows_and_trained_heads(size: int) -> None:
    blend = Objective(**BLEND)
    check(
        [
            Problem(size, objective=blend, bucket=True),
            Problem(size, objective=blend, bucket=True, shared=True, num_blocks=20, chunk_rows=9 * size),
            Problem(size, objective=blend, trained=True, bucket=True, shared=True, num_blocks=20, chunk_rows=12 * size),
            Problem(size, objective=Objective(weights="dpace"), bucket=True, shared=True, num_blocks=12),
            Problem(size, objective=Objective(**BLEND, weights="dpace"), trained=True, chunk_rows=11 * size),
        ]
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_awkward_shapes(size: int) -> None:
    check(
        [
            Problem(size, vocabulary=1),
            Problem(size, vocabulary=2, objective=Objective(**BLEND)),  # an empty shard on three ranks
            Problem(size, chunk_rows=1, num_blocks=2),
            Problem(size, chunk_rows=1000),
            Problem(size, weights="none", bucket=True, shared=True),
            Problem(size, weights="none", objective=Objective(**BLEND, weights="dpace"), trained=True),
            Problem(size, weights="all", trained=True, upstream=3.7),
        ]
    )


def test_head_only_ranks() -> None:
    blend = Objective(**BLEND)
    check(
        [
            Problem(3, rows=(0, 1), objective=blend, bucket=True, shared=True, num_blocks=12),
            Problem(3, rows=(1,), objective=blend, trained=True),
            Problem(3, rows=(0, 2), objective=Objective(weights="dpace"), trained=True),
            Problem(3, rows=()),
        ]
    )
