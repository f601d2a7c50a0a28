"""What a stream tells about itself: packs, bytes, who waits for whom, and what would change that.

In: the meters of both sides. Out: one frozen report and one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

_NOTABLE = 0.03


@dataclass(frozen=True)
class StreamMeters:
    """Of one rank since it began. target_waited, drafter_waited: seconds waited for the other side, out of elapsed.

    Of the other side's figures a drafter rank knows what the headers told, the mean over its targets; a target rank knows only
    its own. Colocated ranks wait for nobody.
    """

    packs: int
    empty_packs: int
    bytes: int
    elapsed: float
    target_waited: float
    drafter_waited: float

    def since(self, earlier: StreamMeters) -> StreamMeters:
        """What has been added after an earlier reading of the same meters."""
        return StreamMeters(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(StreamMeters)}
        )

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def target_share(self) -> float:
        """Share of the time in which targets waited for drafters."""
        return self.target_waited / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def drafter_share(self) -> float:
        """Share of the time in which drafters waited for targets."""
        return self.drafter_waited / self.elapsed if self.elapsed > 0 else 0.0


def bottleneck(meters: StreamMeters, num_targets: int) -> str:
    """Who waits for whom, and what would move it."""
    target, drafter = meters.target_share, meters.drafter_share
    rate = meters.bytes_per_second / 1e6
    shares = f"drafters wait {drafter:.0%} of the time, targets {target:.0%}, {rate:,.1f} MB/s"
    if max(target, drafter) < _NOTABLE:
        return f"balanced: {shares}"
    if drafter >= target:
        needed = num_targets / max(1 - drafter, 0.01)
        return (
            f"the targets are the bottleneck: {shares}; {num_targets} targets do the work of {needed:.1f} that would keep "
            "up; more target GPUs, a larger target.tokens_per_forward, or more anchors for the same tokens"
        )
    needed = max(num_targets * (1 - target), 0.1)
    return (
        f"the drafters are the bottleneck: {shares}; {needed:.1f} of {num_targets} targets would keep up; more drafter or "
        "head ranks, fewer anchors.per_pack, or a smaller drafter.block_size"
    )
