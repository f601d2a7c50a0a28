"""The trainer's figures: sums and counts that no grouping of blocks can change, with the streak that servers report."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.head import RowStatistics
from tp_dflash.training.meters import StepMeters

BLOCK = 5
# Accepted runs 3, 2, 1, 0 of four blocks whose positions 1..4 are all trained.
RUNS = (3, 2, 1, 0)


def _statistics(blocks: list[tuple[list[bool], list[bool]]], alpha: float = 0.5) -> RowStatistics:
    """Rows of blocks given as (valid, hit) of every position, the anchor first."""
    valid_N = torch.tensor([valid for block in blocks for valid in block[0]])
    hit_N = torch.tensor([hit for block in blocks for hit in block[1]])
    ones_N = torch.ones(valid_N.shape[0])
    rank_N = torch.where(hit_N, 0, 7)
    return RowStatistics(
        valid_N=valid_N,
        weight_N=ones_N * valid_N,
        loss_N=2 * ones_N,
        label_logprob_N=ones_N * math.log(0.25),
        kl_N=ones_N,
        alpha_N=ones_N * alpha,
        entropy_N=ones_N,
        label_rank_N=rank_N,
        teacher_rank_N=rank_N,
        argmax_N=rank_N,
        teacher_argmax_N=rank_N,
    )


def _run(length: int) -> tuple[list[bool], list[bool]]:
    """A block that accepts ``length`` tokens, misses one, and hits again afterwards."""
    hits = [k <= length or k > length + 1 for k in range(1, BLOCK)]
    return [False] + [True] * (BLOCK - 1), [False, *hits]


def _read(groups: list[list[int]]) -> dict[str, float | list[float]]:
    meters = StepMeters(BLOCK, torch.device("cpu"))
    for runs in groups:
        meters.add(_statistics([_run(length) for length in runs]))
    return meters.read(dist.group.WORLD)


def _grouped(rank: int, groups: list[list[int]]) -> float:
    return _read(groups)["streak"]


def _one_group_a_rank(rank: int, groups: list[list[int]]) -> float:
    return _read([groups[rank]])["streak"]


@pytest.mark.parametrize("groups", [[[3, 1], [2, 0]], [[3, 2], [1, 0]], [[3, 2, 1, 0]], [[3], [2], [1], [0]]])
def test_grouping_does_not_show(groups: list[list[int]]) -> None:
    """1.5 drafted tokens (2.5 with the bonus token), never a mean of means or a product of means."""
    assert run_ranks(_grouped, 1, groups) == [1.5]


@pytest.mark.parametrize("groups", [[[3, 1], [2, 0]], [[3, 2], [1, 0]], [[3, 2, 1], [0]]])
def test_ranks_do_not_show(groups: list[list[int]]) -> None:
    assert run_ranks(_one_group_a_rank, 2, groups) == [1.5, 1.5]


def _gaps(rank: int) -> list[dict[str, float | list[float]]]:
    def read(valid: list[bool], hit: list[bool]) -> dict[str, float | list[float]]:
        meters = StepMeters(BLOCK, torch.device("cpu"))
        meters.add(_statistics([(valid, hit)]))
        return meters.read(dist.group.WORLD)

    every = [True] * BLOCK
    return [
        read([False, True, True, False, False], every),
        read([False, True, False, True, True], every),
        read([True, True, True, True, True], every),
        read([False] * BLOCK, every),
    ]


def test_a_gap_ends_the_streak_and_an_untrained_anchor_does_not() -> None:
    cut, gap, next_token, nothing = run_ranks(_gaps, 1)[0]
    assert cut["streak"] == 2
    assert gap["streak"] == 1
    assert gap["expected_streak"] == 0.5
    assert next_token["streak"] == 5
    assert next_token["expected_streak"] == pytest.approx(sum(0.5**k for k in range(1, 6)))
    assert math.isnan(nothing["streak"])
    assert nothing["rows"] == 0


def _figures(rank: int) -> tuple[dict[str, float | list[float]], dict[str, float | list[float]]]:
    meters = StepMeters(BLOCK, torch.device("cpu"))
    meters.add(_statistics([_run(length) for length in RUNS]))
    meters.end_step(torch.tensor(4.0), torch.tensor(0.0))
    meters.end_step(torch.tensor(float("nan")), torch.tensor(1.0))
    meters.end_empty_step()
    return meters.read(dist.group.WORLD), meters.read(dist.group.WORLD)


def test_figures_are_divided_once_and_reading_starts_anew() -> None:
    figures, again = run_ranks(_figures, 1)[0]
    assert figures["loss"] == 2
    assert figures["rows"] == 16
    assert figures["accuracy_by_position"][1:] == [0.75, 0.75, 0.75, 0.75]
    assert math.isnan(figures["accuracy_by_position"][0])
    assert figures["label_probability"] == pytest.approx(0.25)
    assert (figures["skipped_steps"], figures["grad_norm"], figures["empty_steps"]) == (1, 4, 1)
    assert again["rows"] == 0
    assert again["skipped_steps"] == 0
