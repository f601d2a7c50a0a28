"""The chronology of a target rank: compute each of its packs in plan order and send it to the drafter rank it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tp_dflash.blocks import BlockLayout
from tp_dflash.training.course import Cursor
from tp_dflash.training.pack_feed import PackFeed


class FeatureSink(Protocol):
    """Where a target rank's features go."""

    def send(self, layout: BlockLayout) -> None:
        """Compute and send one pack; waits while as many packs as allowed are in flight."""

    def finish(self) -> None:
        """Wait until everything that was sent has been taken."""


def run_target(feed: PackFeed, sink: FeatureSink, after_step: Callable[[Cursor], bool]) -> None:
    """Serve every step that is left, until ``after_step`` returns True.

    A target rank keeps nothing that lasts: when the drafter ranks stop early, it is ended from outside (see ``Lookout``).
    """
    for step, layouts in feed.steps():
        for layout in layouts:
            sink.send(layout)
        if after_step(step.after):
            break
    sink.finish()
