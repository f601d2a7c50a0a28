"""The chronology of a drafter rank: receive, step, show, save; from the cursor to the last step.

In: a step's mathematics, a feed of layouts, a source of features. Out: a trained drafter and what was written on the way.
It reads top to bottom; what a step computes is elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.streams import StreamMeters
from tp_dflash.training.course import Course, Cursor
from tp_dflash.training.drafter_step import DrafterStep
from tp_dflash.training.optimizer import learning_rate
from tp_dflash.training.pack_feed import PackFeed
from tp_dflash.training.step_facts import StepFacts, exchange_step_facts

# Steps whose receives are posted before they are needed: targets compute the next packs meanwhile.
_STEPS_AHEAD = 1


class FeatureSource(Protocol):
    """Where features come from: a stream, the rank's own target, or files."""

    def expect(self, layout: BlockLayout) -> None:
        """Get ready for the features of one pack; packs are asked for in the order in which they are expected."""

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        """The features of the pack that was expected first; waits until they are there."""

    def finish(self) -> None:
        """End without error once the last pack has been used."""

    def meters(self) -> StreamMeters:
        """Packs, bytes, and who waited for whom so far."""


@dataclass(frozen=True)
class StepDone:
    """What the loop tells after each step. empty: no rank had a row to train."""

    after: Cursor
    facts: StepFacts
    rate: float
    seconds: float
    empty: bool


class DrafterLoop:
    """Runs every step that is left."""

    def __init__(
        self,
        accumulation: int,
        optimizer: OptimizerConfig,
        course: Course,
        feed: PackFeed,
        source: FeatureSource,
        step: DrafterStep,
        head_ranks: tuple[int, ...],
        stop_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """stop_wanted: asked once a step; what one rank is told all ranks act on, after the same step."""
        self.accumulation = accumulation
        self.optimizer = optimizer
        self.course = course
        self.feed = feed
        self.source = source
        self.step = step
        self.head_ranks = head_ranks
        self.stop_wanted = stop_wanted

    def run(self, after_step: Callable[[StepDone], bool]) -> None:
        """Step until the course ends or ``after_step`` returns True (all ranks must agree on that; facts.stop is agreed)."""
        started = time.monotonic()
        for step, layouts in self.feed.steps_ahead(_STEPS_AHEAD, self.source.expect):
            facts = exchange_step_facts(
                layouts, self.accumulation, self.head_ranks, self.step.workers, self.stop_wanted()
            )
            rate = learning_rate(self.course.position(step.index), self.course.schedule_length, self.optimizer)
            self.step.phase.step = step.index
            for layout, active_rows, teacher_rows in zip(layouts, facts.active_rows, facts.teacher_rows, strict=True):
                self.step.phase.enter("features")
                features = self.source.receive(layout)
                if facts.num_rows:
                    self.step.micro_step(layout, features, active_rows, teacher_rows)
            if facts.num_rows:
                self.step.update(rate)
            else:
                self.step.pass_over()
            now = time.monotonic()
            done = StepDone(step.after, facts, rate, now - started, empty=not facts.num_rows)
            started = now
            if after_step(done):
                break
        self.source.finish()
