"""Published faults of vocabulary sharding, with their right values: scaled gradients, uneven vocabularies, added rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.head.problem import Problem, sharded
from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss
from tp_dflash.head.vocab_range import tiling_problem


def _zero_logits(rank: int, size: int, vocabulary: int, label: int, padding: int) -> dict[str, Any]:
    """One row of zero logits by way of a zero head; the head's gradient at hidden row (1, 0) is the logits' gradient."""
    vocab = VocabRange.split(vocabulary, size)[rank]
    weight = torch.zeros(vocab.size + padding, 2, dtype=torch.float64, requires_grad=True)
    teacher = torch.zeros(vocab.size + padding, 2, dtype=torch.float64)
    with torch.no_grad():
        weight[vocab.size :] = 100.0  # rows that we added would win every argmax
    rows = 1 if rank == 0 else 0
    result = sharded_head_loss(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64)[:rows],
        torch.ones(rows, 2, dtype=torch.float64),
        torch.zeros(rows, dtype=torch.int64),
        torch.full((rows,), label),
        torch.ones(rows),
        drafter_head=HeadShard(weight, vocab, padding),
        teacher_head=HeadShard(teacher, vocab, padding),
        objective=Objective(ce=1.0, kl=0.0),
        block_size=1,
        group=dist.group.WORLD if size > 1 else None,
    )
    result.loss_sum.backward()
    assert weight.grad is not None
    return {
        "loss": result.loss_sum.detach(),
        "grad": weight.grad[:, 0],
        "argmax": result.statistics.argmax_N,
        "teacher_argmax": result.statistics.teacher_argmax_N,
    }


def test_seven_rows_over_two_ranks() -> None:
    first, second = run_ranks(_zero_logits, 2, 2, 7, 5, 1)
    assert math.isclose(first["loss"].item(), 1.945910149055313)
    torch.testing.assert_close(first["grad"], torch.tensor([1 / 7] * 4 + [0.0], dtype=torch.float64))
    torch.testing.assert_close(second["grad"], torch.tensor([1 / 7, 1 / 7 - 1, 1 / 7, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(("vocabulary", "size"), [(151_669, 2), (151_936, 3), (151_936, 5), (248_320, 3)])
def test_real_vocabularies_that_do_not_divide(vocabulary: int, size: int) -> None:
    ranges = VocabRange.split(vocabulary, size)
    assert tiling_problem(ranges) is None
    assert max(part.size for part in ranges) - min(part.size for part in ranges) <= 1


@pytest.mark.parametrize("label_at", ["first", "last", "first of the last shard"])
def test_every_model_row_counts_and_no_added_one(label_at: str) -> None:
    vocabulary = 151_936
    label = {"first": 0, "last": vocabulary - 1}.get(label_at, VocabRange.split(vocabulary, 3)[2].start)
    results = run_ranks(_zero_logits, 3, 3, vocabulary, label, 2)
    assert math.isclose(results[0]["loss"].item(), 11.931214658529285, rel_tol=1e-9)
    assert results[0]["argmax"].tolist() == [0]
    assert results[0]["teacher_argmax"].tolist() == [0]


def _problem(rank: int, problem: Problem) -> dict[str, Any]:
    return sharded(rank, problem)


def test_fp32_gradients_do_not_depend_on_the_number_of_shards() -> None:
    """The rows stay with rank 0, so that only the sharding differs."""
    problems = [
        Problem(size, rows=(0,), objective=Objective(ce=0.5, kl=0.5), dtype=torch.float32, trained=True)
        for size in (1, 2, 4)
    ]
    alone = sharded(0, problems[0])
    for problem in problems[1:]:
        results = run_ranks(_problem, problem.size, problem)
        torch.testing.assert_close(results[0]["hidden_grad"], alone["hidden_grad"], rtol=1e-5, atol=1e-6)
        weight_grad = torch.cat([result["weight_grad"] for result in results])
        torch.testing.assert_close(weight_grad, alone["weight_grad"], rtol=1e-5, atol=1e-6)


def test_ranges_that_do_not_tile_are_named() -> None:
    whole = VocabRange(0, 7, 7)
    assert "starts at 7" in str(tiling_problem([whole, whole]))
    assert "stops at 4" in str(tiling_problem([VocabRange(0, 4, 7)]))
    with pytest.raises(ValueError, match="VocabRange.split"):
        VocabRange(3, 2, 7)
