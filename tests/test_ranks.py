"""The rank helper itself: results in rank order, errors and time-outs of one rank reach the test."""

import time

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks


def _sum_of_ranks(rank: int, offset: float) -> dict[str, torch.Tensor]:
    total = torch.tensor([rank + offset], dtype=torch.bfloat16)
    dist.all_reduce(total)
    return {"total": total, "nothing": torch.empty(0, 3)}


def _fail_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank one is unwell")


def _sleep_on_one(rank: int) -> None:
    time.sleep(60 * rank)


def test_results_come_back_in_rank_order() -> None:
    results = run_ranks(_sum_of_ranks, 3, 0.5)
    assert [result["total"].item() for result in results] == [4.5, 4.5, 4.5]
    assert results[0]["total"].dtype == torch.bfloat16
    assert results[0]["nothing"].shape == (0, 3)


def test_the_failing_ranks_traceback_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"rank 1 raised:(.|\n)*rank one is unwell"):
        run_ranks(_fail_on_one, 2)


def test_a_hanging_rank_is_named() -> None:
    with pytest.raises(AssertionError, match=r"ranks \[1\] gave no result within 3 s"):
        run_ranks(_sleep_on_one, 2, timeout=3)
