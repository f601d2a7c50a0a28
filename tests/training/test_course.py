"""The order of a run does not depend on the ranks that run it, and goes on where it stopped."""

from __future__ import annotations

import numpy as np
import pytest

from tp_dflash.data.batch_plan import BatchPlan
from tp_dflash.training.course import Course, Cursor


def _course(packs_per_step: int, cursor: Cursor | None = None, max_steps: int | None = None, epochs: int = 3) -> Course:
    lengths = np.random.default_rng(0).integers(3, 30, size=41)
    return Course(
        BatchPlan(lengths, token_budget=40, seed=1, packs_per_step=packs_per_step),
        epochs,
        max_steps,
        cursor or Cursor(),
    )


def _documents(course: Course, stop: int | None = None) -> list[tuple[int, tuple[int, ...]]]:
    """(epoch, document ids) of every filled pack, in order."""
    packs = []
    for step in course.steps():
        if step.index == stop:
            break
        packs += [(step.plan.epoch, step.plan.document_ids(pack)) for pack in step.pack_ids]
    return [pack for pack in packs if pack[1]]


@pytest.mark.parametrize("packs_per_step", [1, 2, 3, 5])
def test_every_number_of_ranks_sees_the_same_packs_in_the_same_order(packs_per_step: int) -> None:
    assert _documents(_course(packs_per_step)) == _documents(_course(1))
    for epoch in range(3):
        seen = [document for e, ids in _documents(_course(packs_per_step)) if e == epoch for document in ids]
        assert sorted(seen) == list(range(41))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3), (3, 1), (4, 2)])
def test_a_run_continued_after_any_step_takes_what_is_left(before: int, after: int) -> None:
    expected = _documents(_course(1))
    steps = list(_course(before).steps())
    for step in steps:
        continued = _documents(_course(before), step.index + 1) + _documents(_course(after, step.after))
        assert continued == expected, step.index
    assert len(steps) > 12


def test_an_epochs_end_is_a_place_like_any_other() -> None:
    course = _course(2)
    ends = [step.after for step in course.steps() if step.after.pack == 0]
    assert [cursor.epoch for cursor in ends] == [1, 2, 3]
    again = _course(2, ends[0])
    assert again.total_steps == course.total_steps
    assert next(again.steps()).index == ends[0].step


def test_max_steps_ends_the_course() -> None:
    course = _course(2, max_steps=5)
    assert course.total_steps == 5
    assert [step.index for step in course.steps()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("max_steps", [None, 12])
def test_the_schedule_goes_on_where_it_stood(before: int, after: int, max_steps: int | None) -> None:
    """The same share of the schedule is done, and the last step is the schedule's last; nothing moves at the same size."""
    course = _course(before, max_steps=max_steps)
    cursor = next(step.after for step in course.steps() if step.index == 6)
    point = course.schedule_point(cursor.step)
    continued = Course(_course(after).plan, 3, max_steps, cursor, point)
    share = continued.position(cursor.step) / continued.schedule_length
    assert share == pytest.approx(point.position / point.length, abs=1e-12)
    assert continued.position(continued.total_steps - 1) == pytest.approx(continued.schedule_length - 1)
    if before == after:
        assert continued.position(9) == course.position(9) == 9.0
        assert continued.schedule_length == course.schedule_length
