"""One entry of a memory plan: what it is, how many bytes, why, and when in a step it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The moments of a step at which a rank may hold the most: the target's forward, the drafter's head loss, the start of the
# drafter's backward pass, its end (gradients complete, activations gone), the optimizer.
Moment = Literal["features", "head", "backward", "gradients", "update"]
ALL_MOMENTS: tuple[Moment, ...] = ("features", "head", "backward", "gradients", "update")


@dataclass(frozen=True)
class MemoryLine:
    """``arithmetic``: the numbers whose product or sum ``num_bytes`` is, for people. ``moments``: when it is held."""

    name: str
    num_bytes: int
    arithmetic: str
    moments: tuple[Moment, ...] = ALL_MOMENTS

    def __post_init__(self) -> None:
        if self.num_bytes < 0:
            raise ValueError(
                f"expected bytes of at least 0 for {self.name}, got {self.num_bytes}; check {self.arithmetic}"
            )
