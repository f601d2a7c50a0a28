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
    stop_wanted: Callable[[], bool] = lambda: False,
) -> bool:
    """Serve every step that is left, until ``after_step`` returns True; False if all ranks agreed to stop early."""
    for planned in course.steps():
        facts = exchange_step_facts([], accumulation, head_ranks, step.workers, stop_wanted())
        if facts.num_rows:
            for active_rows, teacher_rows in zip(facts.active_rows, facts.teacher_rows, strict=True):
                step.micro_step(active_rows, teacher_rows)
        if facts.stop and planned.after.step < course.total_steps:
            return False
        if after_step(planned.after):
            break
    return True
