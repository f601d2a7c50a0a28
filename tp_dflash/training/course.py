"""The order of a run: which packs belong to which optimizer step, from the first to the last.

In: a batch plan, how long to go on, and where an earlier run stopped. Out: steps, the same on every rank. A step is named
by its packs, so a run that is continued with another number of ranks takes the packs that are left, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tp_dflash.data.batch_plan import BatchPlan
from tp_dflash.data.epoch_plan import EpochPlan


@dataclass(frozen=True)
class Cursor:
    """Where a run stands: optimizer steps taken, and the first pack of which epoch comes next."""

    step: int = 0
    epoch: int = 0
    pack: int = 0


# Called on every rank at the same point of the plan, after a step; True ends the run there.
BetweenSteps = Callable[[Cursor], bool]


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step: its number from 0, its epoch's plan, and its packs."""

    index: int
    plan: EpochPlan
    pack_ids: range
    after: Cursor


@dataclass(frozen=True)
class SchedulePoint:
    """Where a run stood in its learning-rate schedule, kept in checkpoints. position, length: in steps, not always whole."""

    position: float
    length: float
    packs_per_step: int


class Course:
    """All steps that are left after ``cursor``.

    The schedule's position is the step's number. After a change of the number of ranks or of accumulation a step has another
    size: then the share of the schedule that is done is kept, and the steps that are left make up the rest.
    """

    def __init__(
        self,
        plan: BatchPlan,
        epochs: int,
        max_steps: int | None,
        cursor: Cursor,
        resumed_from: SchedulePoint | None = None,
    ) -> None:
        self.plan = plan
        self.epochs = epochs
        self.cursor = cursor
        left = sum(self._plan_epoch(epoch).num_steps for epoch in range(cursor.epoch, epochs))
        planned = cursor.step + left
        self.total_steps = planned if max_steps is None else min(planned, max_steps)
        self._first_position = self._position_at_cursor(resumed_from)

    @property
    def schedule_length(self) -> float:
        """Steps of the whole schedule, in steps of the present size."""
        return self._first_position + max(0, self.total_steps - self.cursor.step)

    def position(self, step: int) -> float:
        """Place of a step in the schedule, from 0."""
        return self._first_position + (step - self.cursor.step)

    def schedule_point(self, step: int) -> SchedulePoint:
        """What a checkpoint after ``step`` steps keeps."""
        return SchedulePoint(self.position(step), self.schedule_length, self.plan.packs_per_step)

    def steps(self) -> Iterator[Step]:
        """Every step from the cursor to the last, in order."""
        index = self.cursor.step
        for epoch in range(self.cursor.epoch, self.epochs):
            plan = self._plan_epoch(epoch)
            for step in range(plan.num_steps):
                if index >= self.total_steps:
                    return
                pack_ids = plan.step_packs(step)
                ended = step == plan.num_steps - 1
                after = Cursor(index + 1, epoch + 1, 0) if ended else Cursor(index + 1, epoch, pack_ids.stop)
                yield Step(index, plan, pack_ids, after)
                index += 1

    def _position_at_cursor(self, before: SchedulePoint | None) -> float:
        if before is None:
            return float(self.cursor.step)
        left = max(0, self.total_steps - self.cursor.step)
        if before.packs_per_step == self.plan.packs_per_step or before.position >= before.length or not left:
            return before.position
        share = before.position / before.length
        return left * share / (1 - share)

    def _plan_epoch(self, epoch: int) -> EpochPlan:
        return self.plan.plan_epoch(epoch, self.cursor.pack if epoch == self.cursor.epoch else 0)
