"""This rank's packs of every step as block layouts, a few steps ahead of their use.

In: a course, a token store, the anchor caps. Out: (step, layouts) in order. Target and drafter ranks make the same layouts
from the same plan; building them ahead lets a drafter rank post its receives before it needs them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tp_dflash.blocks import AnchorCaps, BlockLayout
from tp_dflash.blocks.layout import LabelMode
from tp_dflash.config.run import RunConfig
from tp_dflash.data.store import TokenStore
from tp_dflash.drafter import DrafterShape
from tp_dflash.training.course import Course, Step


@dataclass(frozen=True)
class LayoutRules:
    """Everything beside the pack that a block layout depends on."""

    caps: AnchorCaps
    seed: int
    block_size: int
    label_mode: LabelMode

    @staticmethod
    def of(config: RunConfig, shape: DrafterShape) -> LayoutRules:
        """The rules of a run; target and drafter ranks must have the same."""
        return LayoutRules(anchor_caps(config), config.training.seed, shape.block_size, shape.label_mode)


def anchor_caps(config: RunConfig) -> AnchorCaps:
    """Caps and spacing of a run's anchors."""
    spacing = config.drafter.block_size if config.anchors.draw == "grid" else 1
    return AnchorCaps(config.anchors.per_pack, config.anchors.per_document, spacing)


class PackFeed:
    """Layouts of the packs that ``mine`` selects, in plan order."""

    def __init__(self, course: Course, store: TokenStore, rules: LayoutRules, mine: Callable[[int], bool]) -> None:
        self.course = course
        self.store = store
        self.rules = rules
        self.mine = mine

    def steps(self) -> Iterator[tuple[Step, list[BlockLayout]]]:
        """Every step that is left, with this rank's layouts."""
        for step in self.course.steps():
            yield step, [self._layout(step, pack_id) for pack_id in step.pack_ids if self.mine(pack_id)]

    def steps_ahead(
        self, num_steps: int, announce: Callable[[BlockLayout], None]
    ) -> Iterator[tuple[Step, list[BlockLayout]]]:
        """The same, but each layout is announced ``num_steps`` steps before it is given out (0: just before)."""
        waiting: deque[tuple[Step, list[BlockLayout]]] = deque()
        for step, layouts in self.steps():
            for layout in layouts:
                announce(layout)
            waiting.append((step, layouts))
            if len(waiting) > num_steps:
                yield waiting.popleft()
        yield from waiting

    def _layout(self, step: Step, pack_id: int) -> BlockLayout:
        rules = self.rules
        pack = step.plan.pack(self.store, pack_id)
        return BlockLayout.build(pack, rules.caps, rules.seed, rules.block_size, rules.label_mode)
