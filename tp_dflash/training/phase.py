"""What a rank is doing, in a word, for the report of a failure."""

from __future__ import annotations

from typing import Literal

# The last five are the moments of a step that the planner adds up.
PhaseName = Literal["start", "loading", "evaluation", "saving", "features", "head", "backward", "update"]
IN_WORDS: dict[PhaseName, str] = {
    "start": "the start",
    "loading": "loading weights",
    "evaluation": "the evaluation",
    "saving": "copying the state for a checkpoint",
    "features": "making or receiving the target's features",
    "head": "the drafter's forward pass and the head loss",
    "backward": "the drafter's backward pass",
    "update": "the optimizer's update",
}


class Phase:
    """The phase that a rank is in; ``step`` counts from 0 and is -1 before the first step."""

    def __init__(self) -> None:
        self.name: PhaseName = "start"
        self.step = -1

    def enter(self, name: PhaseName, step: int | None = None) -> None:
        self.name = name
        if step is not None:
            self.step = step

    def __str__(self) -> str:
        return IN_WORDS[self.name] + (f" of step {self.step + 1}" if self.step >= 0 else "")
