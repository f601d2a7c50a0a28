"""A target rank's part of a run: load the frozen model, prove it on a few tokens, serve packs to drafter ranks.

A drafter rank that also hosts the target uses the same functions for its features.
"""

from __future__ import annotations

from types import TracebackType

from tp_dflash.blocks import BlockLayout, FixedShapes
from tp_dflash.parallel.device import peak_memory_bytes
from tp_dflash.streams import CachedFeatures, FeatureReceiver, FeatureSender, LocalFeatures, PayloadShapes
from tp_dflash.streams.sender import ComputeFeatures
from tp_dflash.target import Target, check_target
from tp_dflash.training.course import BetweenSteps, Cursor
from tp_dflash.training.feature_cache import open_cached_features
from tp_dflash.training.heartbeat import Heartbeat
from tp_dflash.training.pack_feed import PackFeed
from tp_dflash.training.run_context import RunContext
from tp_dflash.training.target_loop import run_target


def load_target(context: RunContext) -> Target:
    """The tapped target on this rank's device; ValueError if its logits are not head @ hidden."""
    context.phase.enter("loading")
    layer_ids, group = context.shape.target_layer_ids, context.groups.target
    target = Target.load(context.config.target, context.facts, layer_ids, context.device, group)
    check_target(target)
    return target


def payload_shapes(context: RunContext) -> PayloadShapes:
    """The largest pack that the configuration allows; both ends of a stream compute it."""
    rows = context.config.anchors.per_pack * context.shape.block_size
    teacher_rows = min(rows, context.config.data.token_budget)
    fixed = FixedShapes(context.config.data.token_budget, context.config.anchors.per_pack, teacher_rows)
    return PayloadShapes(fixed, context.shape.feature_size, context.shape.hidden_size, context.facts.dtype)


def target_feed(context: RunContext) -> PackFeed:
    """The packs of the target that this rank holds or shares in."""
    placement = context.placement
    leader = placement.target_group_of(context.rank)[0]
    return PackFeed(
        context.course, context.data.train, context.rules, lambda pack_id: placement.target_of(pack_id) == leader
    )


def open_sender(context: RunContext, compute: ComputeFeatures) -> FeatureSender:
    """This rank's end of its streams, both ends of which are opened at once."""
    return FeatureSender(
        compute,
        {drafter: group for (_, drafter), group in context.groups.streams.items()},
        context.placement.drafter_of,
        payload_shapes(context),
        context.device,
        context.config.training.timeout_seconds,
    )


class FollowingTarget:
    """Where a rank that only shares in a target puts its packs: it computes its part of each, and nothing is sent."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def send(self, layout: BlockLayout) -> None:
        self.target.follow(layout)

    def finish(self) -> None:
        pass


class TargetRole:
    """Computes every pack of this rank's target that is left, and sends them if it leads. A context manager: an error reaches
    the drafters."""

    def __init__(self, context: RunContext, target: Target) -> None:
        self.context = context
        self.feed = target_feed(context)
        self.sender = open_sender(context, target.features) if context.leads_target else None
        self.sink = FollowingTarget(target) if self.sender is None else self.sender

    def __enter__(self) -> TargetRole:
        if self.sender is not None:
            self.sender.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.sender is not None:
            self.sender.__exit__(kind, error, trace)

    def run(self, between_steps: BetweenSteps) -> bool:
        """Every step that is left. When the drafter ranks stop early this rank is ended by its lookout; True otherwise."""
        self.context.phase.enter("features")

        def after_step(cursor: Cursor) -> bool:
            self._beat(cursor)
            self.context.phase.enter("features", cursor.step)
            return between_steps(cursor)

        run_target(self.feed, self.sink, after_step)
        return True

    def _beat(self, cursor: Cursor) -> None:
        context = self.context
        if cursor.step % context.config.logging.every_steps == 0 or cursor.step == context.course.total_steps:
            waited = 0.0 if self.sender is None else self.sender.meters().target_waited
            peak = peak_memory_bytes(context.device)
            beat = Heartbeat(context.rank, context.place.role, context.place.gpu, cursor.step, peak, waited)
            beat.write(context.folder.ranks)


def open_source(context: RunContext, target: Target | None) -> FeatureReceiver | LocalFeatures | CachedFeatures:
    """Where a drafter rank gets its features: from files, from its own target if it hosts one, else from the streams."""
    shapes = payload_shapes(context)
    if context.config.data.feature_cache is not None:
        return open_cached_features(context, shapes)
    if target is not None:
        return LocalFeatures(target.features, shapes, context.device)
    return FeatureReceiver(
        {target_rank: group for (target_rank, _), group in context.groups.streams.items()},
        context.placement.target_of,
        shapes,
        context.device,
        context.config.training.timeout_seconds,
    )
