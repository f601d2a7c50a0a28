"""Whole training steps with made-up tokens: training's own roles, with marks at their seams.

In: a context on every rank. Out: on every rank the readings of all: spans, memory, rates. Before the steps each target rank
runs the measured packs alone, so that both rates come from one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch.distributed as dist

from tp_dflash.bench.spans import Span, SpanRecorder
from tp_dflash.bench.step_memory import MemoryReading, forget_peak, read_memory
from tp_dflash.bench.step_parts import TargetAlone, time_target
from tp_dflash.bench.step_phases import RecordedSource, RecordedTarget, mark_phases
from tp_dflash.streams import CachedFeatures, FeatureReceiver, LocalFeatures, StreamMeters
from tp_dflash.target import Target
from tp_dflash.training.drafter_loop import DrafterLoop, StepDone
from tp_dflash.training.drafter_role import build_step
from tp_dflash.training.head_only_role import HeadOnlyRole
from tp_dflash.training.pack_feed import PackFeed
from tp_dflash.training.run_context import RunContext
from tp_dflash.training.target_loop import run_target
from tp_dflash.training.target_role import (
    FollowingTarget,
    load_target,
    open_sender,
    open_source,
    payload_shapes,
    target_feed,
)

STEP_DONE = "step done"
WAIT = "wait for features"


@dataclass(frozen=True)
class RankReading:
    """One rank's side of the run. step_tokens: tokens of every step over all ranks (drafter ranks know them)."""

    rank: int
    role: str
    gpu: int
    memory: MemoryReading
    spans: list[Span]
    alone: TargetAlone | None
    step_tokens: list[int] = field(default_factory=list)
    target_waited: float = 0.0
    drafter_waited: float = 0.0
    streamed_bytes: int = 0

    def step_ends(self) -> list[float]:
        """When each step was done, in the device's time."""
        return [span.start for span in self.spans if span.phase == STEP_DONE]


def run_steps(context: RunContext, warmup: int) -> list[RankReading]:
    """Run the context's course; to be called by all ranks. Steps before ``warmup`` count for nothing but the memory."""
    target = load_target(context) if context.place.is_target else None
    run = _RankRun(context)
    if context.place.is_drafter:
        run.prepare_drafter(target)
    elif target is not None:
        run.prepare_target(target)
    _barrier(context)
    alone = _target_alone(context, target, warmup) if target is not None else None
    _barrier(context)
    forget_peak(context.device)
    run.recorder.start()
    if context.place.is_drafter:
        run.train()
    elif target is not None:
        run.serve()
    else:
        HeadOnlyRole(context).run(lambda _: False)
    reading = run.reading(alone)
    gathered: list[RankReading | None] = [None] * len(context.placement.places)
    dist.all_gather_object(gathered, reading, group=context.groups.everyone)
    return [item for item in gathered if item is not None]


def training_rate(readings: list[RankReading], warmup: int) -> tuple[float, float]:
    """(tokens a second over all ranks, seconds a step) after the warm-up, on the first drafter rank's clock.

    Where drafters wait for targets, time runs from one moment at which nothing was in stock to another: packs that were
    computed ahead during the warm-up must not count as speed. Otherwise it runs from the end of one step to another.
    """
    first = next(reading for reading in readings if reading.step_tokens)
    starved = [(step, when) for step, when in _starved_steps(first) if step >= warmup]
    if len(starved) >= 2:
        (begin, started), (end, stopped) = starved[0], starved[-1]
        tokens = sum(first.step_tokens[begin + 1 : end + 1])
        return tokens / (stopped - started), (stopped - started) / (end - begin)
    ends = first.step_ends()
    seconds = ends[-1] - ends[warmup - 1]
    return sum(first.step_tokens[warmup:]) / seconds, seconds / (len(ends) - warmup)


def _starved_steps(reading: RankReading) -> list[tuple[int, float]]:
    """Steps whose last pack was waited for, and when it came; a wait counts from 2% of a mean step on."""
    ends = [0.0, *reading.step_ends()]
    notable = 0.02 * ends[-1] / max(1, len(ends) - 1)
    starved = []
    for step, (begin, end) in enumerate(itertools.pairwise(ends)):
        waits = [span for span in reading.spans if span.phase == WAIT and begin <= span.start < end]
        if waits and waits[-1].seconds > notable:
            starved.append((step, waits[-1].stop))
    return starved


def target_only_rate(readings: list[RankReading]) -> float:
    """Tokens a second of all targets together, each alone."""
    return sum(reading.alone.tokens / reading.alone.seconds for reading in readings if reading.alone is not None)


class _RankRun:
    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.recorder = SpanRecorder(context.device)
        self.step_tokens: list[int] = []
        self.waited = (0.0, 0.0)
        self.streamed = 0

    def prepare_drafter(self, target: Target | None) -> None:
        context = self.context
        self.source: FeatureReceiver | LocalFeatures | CachedFeatures = (
            open_source(context, None) if target is None else self._local(target)
        )
        self.step = build_step(context)
        mark_phases(self.step, self.recorder)

    def train(self) -> None:
        context = self.context
        feed = self._feed(lambda pack_id: context.placement.drafter_of(pack_id) == context.rank)
        colocated = context.place.is_target
        loop = DrafterLoop(
            context.config.training.accumulation,
            context.config.optimizer,
            context.course,
            feed,
            RecordedSource(self.source, self.recorder, "between" if colocated else WAIT),
            self.step,
            context.head_ranks,
        )
        with self.source:
            loop.run(self._after_step)
        self._keep_meters(self.source.meters())

    def prepare_target(self, target: Target) -> None:
        """Both ends of the streams are opened before the first barrier: each waits for the other's contract."""
        recorded = RecordedTarget(target, self.recorder)
        self.sender = open_sender(self.context, recorded.features) if self.context.leads_target else None
        self.following = FollowingTarget(target)

    def serve(self) -> None:
        feed = target_feed(self.context)
        if self.sender is None:
            run_target(feed, self.following, lambda _: False)
            return
        with self.sender:
            run_target(feed, self.sender, lambda _: False)
        self.recorder.enter("end")
        self._keep_meters(self.sender.meters())

    def reading(self, alone: TargetAlone | None) -> RankReading:
        place = self.context.place
        return RankReading(
            rank=place.rank,
            role=place.role,
            gpu=place.gpu,
            memory=read_memory(place.rank, place.role, self.context.device),
            spans=self.recorder.spans(),
            alone=alone,
            step_tokens=self.step_tokens,
            target_waited=self.waited[0],
            drafter_waited=self.waited[1],
            streamed_bytes=self.streamed,
        )

    def _local(self, target: Target) -> LocalFeatures:
        recorded = RecordedTarget(target, self.recorder)
        return LocalFeatures(recorded.features, payload_shapes(self.context), self.context.device)

    def _feed(self, mine: Callable[[int], bool]) -> PackFeed:
        context = self.context
        return PackFeed(context.course, context.data.train, context.rules, mine)

    def _after_step(self, done: StepDone) -> bool:
        self.step_tokens.append(done.facts.num_tokens)
        self.recorder.enter(STEP_DONE)
        self.recorder.enter("between")
        return False

    def _keep_meters(self, meters: StreamMeters) -> None:
        self.waited = (meters.target_waited, meters.drafter_waited)
        self.streamed = meters.bytes


def _target_alone(context: RunContext, target: Target, warmup: int) -> TargetAlone | None:
    """This target's packs of the steps that are measured, timed by the rank that leads it."""
    placement, steps = context.placement, list(context.course.steps())[warmup:]
    leader = placement.target_group_of(context.rank)[0]
    packs = [pack_id for step in steps for pack_id in step.pack_ids if placement.target_of(pack_id) == leader]
    alone = time_target(context, target, packs)
    return alone if context.leads_target else None


def _barrier(context: RunContext) -> None:
    dist.barrier(group=context.groups.everyone)
