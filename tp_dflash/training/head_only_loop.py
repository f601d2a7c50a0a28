"""The chronology of a head-only rank: the same steps as everyone, serving each head loss of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tp_dflash.training.course import Course, Cursor
from tp_dflash.training.head_only_step import HeadOnlyStep
from tp_dflash.training.step_facts import exchange_step_facts


def run_head_only(
    course: Course,
    step: HeadOnlyStep,
    accumulation: int,
    head_ranks: Sequence[int],
    after_step: Callable[[Cursor], bool],
) -> None:
    """Serve every step that is left, until ``after_step`` returns True."""
    for planned in course.steps():
        facts = exchange_step_facts([], accumulation, head_ranks, step.workers)
        if facts.num_rows:
            for active_rows, teacher_rows in zip(facts.active_rows, facts.teacher_rows, strict=True):
                step.micro_step(active_rows, teacher_rows)
        if after_step(planned.after):
            return
