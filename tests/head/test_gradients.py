"""Gradients made in the forward pass behave like any others: gradcheck, upstream scale, two passes, accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.head.problem import Problem, expected, sharded
from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss

# lk and dpace hold a factor constant that a finite difference moves: those are compared with autograd elsewhere.
TERMS = ("ce", "kl", "reverse_kl", "js", "tv", "nla", "cap")


def _loss(problem: Problem, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    _, teacher = problem.heads()
    vocab = VocabRange(0, problem.vocabulary, problem.vocabulary)
    rows = problem.rows_of(0)
    return sharded_head_loss(
        hidden,
        *rows[1:],
        drafter_head=HeadShard(weight, vocab),
        teacher_head=HeadShard(teacher, vocab),
        objective=problem.objective,
        block_size=problem.block_size,
        chunk_rows=5,
    ).loss_sum


@pytest.mark.parametrize("term", TERMS)
def test_gradcheck(term: str) -> None:
    problem = Problem(1, num_blocks=2, vocabulary=9, width=3, objective=Objective(**{"ce": 0, "kl": 0, term: 1.0}))
    hidden = problem.rows_of(0)[0].requires_grad_()
    weight = problem.heads()[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: _loss(problem, h, w), (hidden, weight))


def test_two_backward_passes_add_up_and_leave_the_first_alone() -> None:
    problem = Problem(1, objective=Objective(tv=0.5))
    hidden, weight = problem.rows_of(0)[0].requires_grad_(), problem.heads()[0].requires_grad_()
    loss = _loss(problem, hidden, weight)
    once = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    thrice = torch.autograd.grad(3.0 * loss, (hidden, weight))
    for single, triple in zip(once, thrice, strict=True):
        torch.testing.assert_close(3.0 * single, triple)


def test_statistics_without_gradients() -> None:
    problem = Problem(1, objective=Objective(js=0.3))
    with torch.no_grad():
        loss = _loss(problem, problem.rows_of(0)[0].requires_grad_(), problem.heads()[0])
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected(problem)["loss_sum"])


def _accumulate(rank: int, problem: Problem) -> dict[str, Any]:
    """Four micro-batches into one head gradient, divided by the weight of all of them."""
    drafter, teacher = problem.heads()
    vocab = VocabRange.split(problem.vocabulary, problem.size)[rank]
    weight = drafter[vocab.start : vocab.stop].clone().requires_grad_()
    grads, total = [], torch.zeros((), dtype=torch.float64)
    for seed in range(4):
        rows = Problem(**{**vars(problem), "seed": seed}).rows_of(rank)
        hidden = rows[0].requires_grad_()
        result = sharded_head_loss(
            hidden,
            *rows[1:],
            drafter_head=HeadShard(weight, vocab),
            teacher_head=HeadShard(teacher[vocab.start : vocab.stop], vocab),
            objective=problem.objective,
            block_size=problem.block_size,
            group=dist.group.WORLD,
            chunk_rows=problem.chunk_rows,
        )
        result.loss_sum.backward()
        total += result.weight_sum
        grads.append(hidden.grad)
    dist.all_reduce(total)
    assert weight.grad is not None
    return {"weight": weight.grad / total, "hidden": torch.stack([g / total for g in grads if g is not None])}


def test_four_micro_batches_are_one_ratio() -> None:
    from tp_dflash.head import dense_head_loss

    problem = Problem(2, objective=Objective(ce=0.5, lk=0.5))
    results = run_ranks(_accumulate, 2, problem)
    drafter, teacher = problem.heads()
    drafter.requires_grad_()
    numerator, denominator, hiddens = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), []
    for seed in range(4):
        for rank in range(2):
            rows = Problem(**{**vars(problem), "seed": seed}).rows_of(rank)
            hiddens.append(rows[0].requires_grad_())
            part = dense_head_loss(
                *rows,
                drafter_weight_VD=drafter,
                teacher_weight_VD=teacher,
                objective=problem.objective,
                block_size=problem.block_size,
            )
            numerator, denominator = numerator + part.loss_sum, denominator + part.weight_sum
    (numerator / denominator).backward()
    torch.testing.assert_close(torch.cat([r["weight"] for r in results]), drafter.grad)
    expected_hidden = torch.stack([hidden.grad for hidden in hiddens if hidden.grad is not None])
    torch.testing.assert_close(torch.stack([r["hidden"] for r in results], dim=1).flatten(0, 1), expected_hidden)


def test_bf16_rows_with_an_fp32_master_head() -> None:
    """Products take the head rounded to bf16; its gradient comes back in fp32, summed over chunks in fp32."""
    problem = Problem(1, num_blocks=8, vocabulary=40, width=16, dtype=torch.float32, weights="all")
    drafter, teacher = problem.heads()
    rows = problem.rows_of(0)
    weight = drafter.clone().requires_grad_()
    vocab = VocabRange(0, 40, 40)
    result = sharded_head_loss(
        rows[0].bfloat16(),
        rows[1].bfloat16(),
        *rows[2:],
        drafter_head=HeadShard(weight, vocab),
        teacher_head=HeadShard(teacher.bfloat16(), vocab),
        objective=problem.objective,
        block_size=4,
        chunk_rows=3,
    )
    result.loss_sum.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    rounded = Problem(**{**vars(problem), "dtype": torch.bfloat16, "trained": True})
    want = expected(rounded)["weight_grad"]
    assert (weight.grad.double() - want).norm() / want.norm() < 5e-3


def test_nan_in_a_row_of_weight_zero_reaches_nothing() -> None:
    clean = sharded(0, Problem(1, trained=True))
    problem = Problem(1)
    rows = problem.rows_of(0)
    poisoned = rows[0].clone()
    poisoned[rows[4] == 0] = float("nan")
    weight = problem.heads()[0].requires_grad_()
    hidden = poisoned.requires_grad_()
    _loss(problem, hidden, weight).backward()
    torch.testing.assert_close(hidden.grad, clean["hidden_grad"])
    torch.testing.assert_close(weight.grad, clean["weight_grad"])
