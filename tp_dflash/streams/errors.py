"""What can go wrong between a target rank and a drafter rank; every message names both ranks, the pack and the role."""

from __future__ import annotations

from tp_dflash.blocks import BlockLayout


class StreamError(RuntimeError):
    """A stream cannot go on: the two sides disagree, or one waited too long."""


class PeerLost(StreamError):  # noqa: N818 - it says what happened
    """The other rank's process is gone."""


class TargetFailed(StreamError):  # noqa: N818 - it says what happened
    """A target rank reported an error before it ended; ``remote_traceback`` is its own traceback."""

    def __init__(self, message: str, remote_traceback: str) -> None:
        super().__init__(f"{message}\n--- traceback of the target rank ---\n{remote_traceback}")
        self.remote_traceback = remote_traceback


class DrafterFailed(StreamError):  # noqa: N818 - it says what happened
    """A drafter rank refused a pack or reported an error before it ended; ``remote_traceback`` is its own words."""

    def __init__(self, message: str, remote_traceback: str) -> None:
        super().__init__(f"{message}\n--- traceback of the drafter rank ---\n{remote_traceback}")
        self.remote_traceback = remote_traceback


def check_announced(layout: BlockLayout, first: BlockLayout | None) -> None:
    """StreamError unless ``layout`` is the one that was announced first of those not yet taken (None: nothing was)."""
    if first is not layout:
        announced = "nothing" if first is None else f"pack {first.pack.pack_id}"
        raise StreamError(
            f"expected pack {layout.pack.pack_id} to be announced next, got {announced}; call expect() in order"
        )
