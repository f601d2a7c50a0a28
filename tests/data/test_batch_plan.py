"""Packs of an epoch: complete, within budget, redrawn, little padding, the same for any number of ranks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.ranks import run_ranks
from tp_dflash.data.batch_plan import BatchPlan
from tp_dflash.data.epoch_plan import EpochPlan


def lengths(num_documents: int, median: int = 500, longest: int = 3072, seed: int = 0) -> np.ndarray:
    """Lengths as conversations have them: log-normal, cut at max_length."""
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(median), 0.9, num_documents))
    return np.clip(drawn.astype(np.int64), 8, longest)


def filled(plan: EpochPlan) -> list[tuple[int, ...]]:
    return [pack for pack in plan.packs if pack]


@pytest.mark.parametrize("packs_per_step", [1, 2, 3, 8])
@pytest.mark.parametrize("num_documents", [1, 2, 7, 500])
def test_every_document_once_and_steps_complete(num_documents: int, packs_per_step: int) -> None:
    length_D = lengths(num_documents)
    for epoch in range(3):
        plan = BatchPlan(length_D, 4096, 5, packs_per_step).plan_epoch(epoch)
        packs = plan.packs
        assert sorted(document for pack in packs for document in pack) == list(range(num_documents))
        assert all(sum(length_D[list(pack)]) <= 4096 for pack in packs)
        assert len(packs) == plan.num_packs == plan.num_steps * packs_per_step
        first_empty = plan.num_filled_packs
        assert all(packs[:first_empty])
        assert not any(packs[first_empty:])
        assert len(packs) - first_empty < packs_per_step


def test_the_reported_case_of_uneven_ranks() -> None:
    for length_D, token_budget in ([1] * 7, 1), ([100, 10, 10, 10, 90, 5, 5], 100):
        plan = BatchPlan(np.array(length_D), token_budget, 0, packs_per_step=2).plan_epoch(0)
        steps_of_ranks = [[pack for pack in range(plan.num_packs) if pack % 2 == rank] for rank in range(2)]
        assert len(steps_of_ranks[0]) == len(steps_of_ranks[1])
        assert sorted(document for pack in plan.packs for document in pack) == list(range(7))


def test_packs_and_their_order_do_not_depend_on_the_number_of_ranks() -> None:
    length_D = lengths(1000)
    expected = filled(BatchPlan(length_D, 8192, 3, 1).plan_epoch(2))
    for packs_per_step in (2, 3, 4, 16):
        assert filled(BatchPlan(length_D, 8192, 3, packs_per_step).plan_epoch(2)) == expected


def test_packs_are_redrawn_every_epoch() -> None:
    for num_documents, token_budget in (40, 2048), (300, 4096), (5000, 8192):
        plan = BatchPlan(lengths(num_documents, 200, 1024), token_budget, 0, 1)
        companies = [
            {frozenset(pack) for pack in filled(plan.plan_epoch(epoch)) if len(pack) > 1} for epoch in range(4)
        ]
        shared = [len(one & other) for i, one in enumerate(companies) for other in companies[i + 1 :]]
        assert max(shared) <= 1


def test_companions_differ_between_epochs() -> None:
    plan = BatchPlan(lengths(20_000), 16_384, 0, 1)
    pairs = [_pairs(plan.plan_epoch(epoch)) for epoch in range(2)]
    assert len(pairs[0] & pairs[1]) / len(pairs[0]) < 0.1


def _pairs(plan: EpochPlan) -> set[tuple[int, int]]:
    return {pair for pack in filled(plan) for pair in zip(sorted(pack), sorted(pack)[1:], strict=False)}


def test_seeds_give_other_packs() -> None:
    length_D = lengths(500)
    assert filled(BatchPlan(length_D, 4096, 0, 1).plan_epoch(0)) != filled(
        BatchPlan(length_D, 4096, 1, 1).plan_epoch(0)
    )


@pytest.mark.parametrize(("num_documents", "token_budget"), [(10_000, 8192), (10_000, 65_536), (100_000, 65_536)])
def test_padding_is_at_most_five_percent(num_documents: int, token_budget: int) -> None:
    """Even if a target pads all rows of a pack to its longest document."""
    length_D = lengths(num_documents)
    plan = BatchPlan(length_D, token_budget, 0, 8).plan_epoch(0)
    packs = filled(plan)
    padded = sum(len(pack) * max(length_D[list(pack)]) for pack in packs)
    assert 1 - length_D.sum() / padded <= 0.05
    assert length_D.sum() / (len(packs) * token_budget) >= 0.85


@pytest.mark.parametrize("other_packs_per_step", [2, 3, 4, 5])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_a_run_continues_exactly_where_it_stopped(stop: int, other_packs_per_step: int) -> None:
    length_D = lengths(300)
    expected = [pack for epoch in range(3) for pack in filled(BatchPlan(length_D, 8192, 9, 4).plan_epoch(epoch))]
    before = BatchPlan(length_D, 8192, 9, packs_per_step=4)
    after = BatchPlan(length_D, 8192, 9, packs_per_step=other_packs_per_step)
    plan = before.plan_epoch(1)
    consumed = filled(before.plan_epoch(0))
    consumed += [plan.document_ids(pack) for step in range(stop) for pack in plan.step_packs(step)]
    rest = after.plan_epoch(1, first_pack=stop * 4)
    consumed += [rest.document_ids(pack) for step in range(rest.num_steps) for pack in rest.step_packs(step)]
    consumed += filled(after.plan_epoch(2))
    assert [pack for pack in consumed if pack] == expected


def test_nothing_is_left_when_an_epoch_was_finished() -> None:
    plan = BatchPlan(lengths(50), 8192, 0, 4)
    whole = plan.plan_epoch(0)
    assert plan.plan_epoch(0, first_pack=whole.num_packs).num_steps == 0


def test_weights_say_how_often_a_document_is_used() -> None:
    length_D, weight_D = lengths(400), np.repeat([0.5, 1.0, 2.25, 1 / 3], 100)
    plan = BatchPlan(length_D, 8192, 0, 2, weight_D)
    uses = np.zeros((12, 400))
    for epoch in range(12):
        ids = [document for pack in plan.plan_epoch(epoch).packs for document in pack]
        assert len(set(ids)) == len(ids), "every use has an id, and so anchors, of its own"
        uses[epoch] = np.bincount(np.array(ids) % 400, minlength=400)
    np.testing.assert_array_equal(uses[:, 100:200], 1)
    np.testing.assert_array_equal(uses[:2, :100].sum(0), 1)
    np.testing.assert_array_equal(uses[:4, 200:300].sum(0), 9)
    assert set(uses.sum(0)[300:]) <= {3, 4, 5}
    assert 30 < uses[0, :100].sum() < 70


def test_documents_beyond_the_budget_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"at most 100 tokens, got one of 101"):
        BatchPlan(np.array([5, 101]), 100, 0, 1)
    BatchPlan(np.array([5, 100]), 100, 0, 1).plan_epoch(0)


def test_no_documents_and_no_ranks_are_errors() -> None:
    with pytest.raises(ValueError, match="at least one document"):
        BatchPlan(np.array([], dtype=np.int64), 100, 0, 1)
    with pytest.raises(ValueError, match="at least one pack a step"):
        BatchPlan(np.array([5]), 100, 0, 0)


def test_the_schedule_counts_all_epochs() -> None:
    plan = BatchPlan(lengths(200), 4096, 0, 4)
    assert plan.num_steps(3) == sum(plan.plan_epoch(epoch).num_steps for epoch in range(3))


def digest(rank: int) -> str:
    """A plan as one rank computes it, in whatever state its own generators are."""
    np.random.seed(rank)
    plan = BatchPlan(lengths(2000), 8192, 77, 6, np.full(2000, 0.75)).plan_epoch(4)
    return hashlib.sha256(repr(plan.packs).encode()).hexdigest()


def test_ranks_plan_alike() -> None:
    assert len({*run_ranks(digest, 3), digest(0)}) == 1


def test_the_draw_is_pinned() -> None:
    """Changing the draw would let a continued run see documents twice."""
    plan = BatchPlan(np.array([30, 10, 20, 40, 15, 25, 35, 5]), 60, 1, 2).plan_epoch(0)
    expected_packs = ((3,), (6,), (5, 0, 7), (1, 4, 2))
    assert plan.packs == expected_packs
