"""Features of a rank that is target and drafter at once: the receiver's interface without a stream.

In: layouts as they are expected, a function that writes features. Out: feature batches in a preallocated buffer, in the same
dtype as if they had travelled, so that colocated and streamed runs have the same bits.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

import torch

from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.streams.errors import check_announced
from tp_dflash.streams.meters import StreamMeters
from tp_dflash.streams.payload import PayloadShapes, Slot, payload
from tp_dflash.streams.sender import ComputeFeatures


class LocalFeatures:
    """Computes each pack when it is received. A batch stays valid until the next call of ``receive``."""

    def __init__(self, compute: ComputeFeatures, shapes: PayloadShapes, device: torch.device) -> None:
        self._compute = compute
        self._slot = Slot(shapes, device)
        self._announced: deque[BlockLayout] = deque()
        self._started = time.monotonic()
        self._packs = self._empty_packs = self._bytes = 0

    def expect(self, layout: BlockLayout) -> None:
        """Announce a pack."""
        self._announced.append(layout)

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        """Compute the features of the pack that was expected first."""
        check_announced(layout, self._announced[0] if self._announced else None)
        self._announced.popleft()
        if not layout.pack.documents:
            self._empty_packs += 1
            return self._slot.filled(layout)
        self._compute(layout, self._slot.batch(layout))
        batch = self._slot.filled(layout)
        self._packs += 1
        self._bytes += sum(part.numel() * part.itemsize for part in payload(batch))
        return batch

    def finish(self) -> None:
        """Nothing is in flight."""

    def meters(self) -> StreamMeters:
        """Nobody waits for anybody; bytes are those that a stream would have carried."""
        elapsed = time.monotonic() - self._started
        return StreamMeters(self._packs, self._empty_packs, self._bytes, elapsed, 0.0, 0.0)

    def __enter__(self) -> LocalFeatures:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
