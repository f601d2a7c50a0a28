"""Marks at the seams of a step, by way of hooks that modules and optimizers offer: training itself is not touched."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tp_dflash.bench.spans import SpanRecorder
from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.streams import StreamMeters
from tp_dflash.target import Target
from tp_dflash.training.drafter_loop import FeatureSource
from tp_dflash.training.drafter_step import DrafterStep


def mark_phases(step: DrafterStep, recorder: SpanRecorder) -> None:
    """forward, head, backward (reductions included) and update of every step from now on."""

    def before_forward(module: nn.Module, args: Any) -> None:
        recorder.enter("forward")

    def after_forward(module: nn.Module, args: Any, hidden_ND: Tensor) -> None:
        recorder.enter("head")
        if hidden_ND.requires_grad:
            hidden_ND.register_hook(lambda grad: recorder.enter("backward"))

    step.drafter.register_forward_pre_hook(before_forward)
    step.drafter.register_forward_hook(after_forward)
    # In the order in which they step.
    parts = [part for part in (step.optimizer.muon, step.optimizer.adamw) if part is not None]
    parts[0].register_step_pre_hook(lambda *_: recorder.enter("update"))
    parts[-1].register_step_post_hook(lambda *_: recorder.enter("between"))


class RecordedSource:
    """A source of features that marks how long its packs were waited for."""

    def __init__(self, source: FeatureSource, recorder: SpanRecorder, phase: str) -> None:
        self.source, self.recorder, self.phase = source, recorder, phase

    def expect(self, layout: BlockLayout) -> None:
        self.source.expect(layout)

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        self.recorder.enter(self.phase, layout.pack.pack_id)
        features = self.source.receive(layout)
        self.recorder.enter("assemble", layout.pack.pack_id)
        return features

    def finish(self) -> None:
        self.source.finish()

    def meters(self) -> StreamMeters:
        return self.source.meters()


class RecordedTarget:
    """Writes a target's features and marks when."""

    def __init__(self, target: Target, recorder: SpanRecorder) -> None:
        self.target, self.recorder = target, recorder

    def features(self, layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
        self.recorder.enter("target forward", layout.pack.pack_id)
        batch = self.target.features(layout, out)
        self.recorder.enter("wait for a free buffer")
        return batch
