"""A target rank's part of a run: load the frozen model, prove it on a few tokens, serve packs to drafter ranks.

A drafter rank that also hosts the target uses the same functions for its features.
"""

from __future__ import annotations

from types import TracebackType

from tp_dflash.blocks import FixedShapes
from tp_dflash.parallel.device import peak_memory_bytes
from tp_dflash.streams import CachedFeatures, FeatureReceiver, FeatureSender, LocalFeatures, PayloadShapes
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
    target = Target.load(context.config.target, context.facts, context.shape.target_layer_ids, context.device)
    check_target(target)
    return target


def payload_shapes(context: RunContext) -> PayloadShapes:
    """The largest pack that the configuration allows; both ends of a stream compute it."""
    rows = context.config.anchors.per_pack * context.shape.block_size
    teacher_rows = min(rows, context.config.data.token_budget)
    fixed = FixedShapes(context.config.data.token_budget, context.config.anchors.per_pack, teacher_rows)
    return PayloadShapes(fixed, context.shape.feature_size, context.shape.hidden_size, context.facts.dtype)


class TargetRole:
    """Computes and sends every pack of this target rank that is left. A context manager: an error reaches the drafters."""

    def __init__(self, context: RunContext, target: Target) -> None:
        self.context = context
        placement = context.placement
        self.feed = PackFeed(
            context.course,
            context.data.train,
            context.rules,
            lambda pack_id: placement.target_of(pack_id) == context.rank,
        )
        self.sender = FeatureSender(
            target.features,
            {drafter: group for (_, drafter), group in context.groups.streams.items()},
            placement.drafter_of,
            payload_shapes(context),
            context.device,
            context.config.training.timeout_seconds,
        )

    def __enter__(self) -> TargetRole:
        self.sender.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sender.__exit__(kind, error, trace)

    def run(self, between_steps: BetweenSteps) -> bool:
        """Every step that is left. When the drafter ranks stop early this rank is ended by its lookout; True otherwise."""
        self.context.phase.enter("features")

        def after_step(cursor: Cursor) -> bool:
            self._beat(cursor)
            self.context.phase.enter("features", cursor.step)
            return between_steps(cursor)

        run_target(self.feed, self.sender, after_step)
        return True

    def _beat(self, cursor: Cursor) -> None:
        context = self.context
        if cursor.step % context.config.logging.every_steps == 0 or cursor.step == context.course.total_steps:
            peak, waited = peak_memory_bytes(context.device), self.sender.meters().target_waited
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
