"""A drafter rank's end of the streams: packs in the order in which they are expected, received ahead of their use.

In: layouts as they are expected, the links to the target ranks. Out: feature batches that are views of preallocated buffers.
A pack whose header is not the expected one is refused, and both sides end with an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.streams.contract import agree_on_contract
from tp_dflash.streams.errors import StreamError, TargetFailed, check_announced
from tp_dflash.streams.link import Link, Posted, Tag, say_farewell
from tp_dflash.streams.message import MESSAGE_BYTES, Message, State
from tp_dflash.streams.meters import StreamMeters
from tp_dflash.streams.payload import PayloadShapes, Slot, payload
from tp_dflash.streams.stream_end import StreamEnd
from tp_dflash.streams.transport import Transfer, make_transport
from tp_dflash.streams.waiting import Waiting

_NUM_SLOTS = 2


@dataclass(frozen=True, eq=False)
class _Expected:
    """A pack whose receives are posted. slot and transfer: None for an empty pack."""

    layout: BlockLayout
    link: Link
    header: Posted
    slot: Slot
    transfer: Transfer | None


class FeatureReceiver(StreamEnd):
    """Use it as a context manager: leaving it with an error tells every target rank before this rank ends.

    One buffer is in use, the other one receives. A batch stays valid until the next call of ``receive``.
    """

    def __init__(
        self,
        groups: Mapping[int, ProcessGroup],
        target_of: Callable[[int], int],
        shapes: PayloadShapes,
        device: torch.device,
        limit_seconds: float,
    ) -> None:
        """groups: this rank's pair groups by the target's rank; target_of: rank that computes a pack id."""
        self._target_of = target_of
        self._links = {rank: Link(group, "drafter", limit_seconds) for rank, group in groups.items()}
        agree_on_contract(list(self._links.values()), shapes)
        self._transport = make_transport(device, _NUM_SLOTS)
        self._free = deque(Slot(shapes, device) for _ in range(_NUM_SLOTS))
        self._in_use: Slot | None = None
        self._announced: deque[BlockLayout] = deque()
        self._posted: deque[_Expected] = deque()
        self._receipts: dict[Link, Posted] = {}
        self._waiting = Waiting(device)
        self._target_waited: dict[Link, float] = {}
        self._packs = self._empty_packs = self._bytes = 0

    def expect(self, layout: BlockLayout) -> None:
        """Announce a pack; its receive is posted as soon as a buffer is free."""
        self._announced.append(layout)
        self._post()

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        """The features of the pack that was expected first; waits until they are there.

        StreamError if the message is not that pack's or does not come in time, PeerLost if the target rank's process is
        gone, TargetFailed with its traceback if it failed.
        """
        if self._in_use is not None:
            self._free.append(self._in_use)
            self._in_use = None
        self._post()
        check_announced(layout, self._posted[0].layout if self._posted else None)
        expected = self._posted.popleft()
        self._in_use = expected.slot
        name = Message.about(layout).name
        with self._waiting.measured():
            header = self._checked_header(expected)
            if expected.transfer is not None:
                expected.transfer.wait(f"the features of {name}")
        self._send_receipt(expected.link, Message.about(layout, State.TAKEN))
        return self._counted(expected, header)

    def finish(self) -> None:
        """End without error: wait for the last receipts, give up packs that were expected but will not be used."""
        for receipt in self._receipts.values():
            receipt.wait("the end of the last receipt")
        if self._posted:
            self._transport.abort([link.group for link in self._links.values()])

    def fail(self, error: BaseException) -> None:
        """Tell every target rank that no more packs will be taken, and why; waits at most a few seconds in all."""
        say_farewell(self._links.values(), error, Tag.RECEIPT)
        self._transport.abort([link.group for link in self._links.values()])

    def meters(self) -> StreamMeters:
        """Packs and bytes taken and the time waited for targets, since this receiver was made; of the targets their mean."""
        waiting = self._waiting
        return StreamMeters(
            packs=self._packs,
            empty_packs=self._empty_packs,
            bytes=self._bytes,
            elapsed=waiting.elapsed,
            target_waited=sum(self._target_waited.values()) / max(len(self._target_waited), 1),
            drafter_waited=waiting.seconds,
        )

    def _post(self) -> None:
        while self._announced and self._free:
            layout, slot = self._announced.popleft(), self._free.popleft()
            link = self._links[self._target_of(layout.pack.pack_id)]
            batch = slot.batch(layout)
            header = link.receive(torch.empty(MESSAGE_BYTES, dtype=torch.uint8), Tag.HEADER)
            parts = payload(batch)
            transfer = self._transport.receive(link, parts, slot.whole(layout)) if parts else None
            self._posted.append(_Expected(layout, link, header, slot, transfer))

    def _checked_header(self, expected: _Expected) -> Message:
        link, wanted = expected.link, Message.about(expected.layout)
        try:
            header = Message.decode(expected.header.wait(f"the header of {wanted.name}"))
        except ValueError as error:
            raise StreamError(f"{link.here}: unreadable header from {link.there}: {error}") from None
        if header.state is State.FAILED:
            link.ended = True
            raise TargetFailed(f"{link.here}: {link.there} failed before {wanted.name}", header.text)
        differences = header.differences(wanted)
        if differences:
            text = (
                f"{link.here}: expected {wanted.name} from {link.there}, got {header.name}: {differences}; target and drafter "
                "ranks must be given the same prepared data, seed, anchor caps and plan"
            )
            self._send_receipt(link, Message(State.REFUSED, header.pack_id, header.epoch, text=text))
            self._receipts[link].wait("the end of its refusal")
            link.ended = True
            raise StreamError(text)
        return header

    def _send_receipt(self, link: Link, receipt: Message) -> None:
        """The receipt before it has long been read: its sender waited for it before it could run on."""
        if link in self._receipts:
            self._receipts[link].wait("the end of an earlier receipt")
        self._receipts[link] = link.send(receipt.encode(), Tag.RECEIPT)

    def _counted(self, expected: _Expected, header: Message) -> FeatureBatch:
        batch = expected.slot.filled(expected.layout)
        self._target_waited[expected.link] = header.waited_us / 1e6
        self._packs += expected.transfer is not None
        self._empty_packs += expected.transfer is None
        self._bytes += sum(part.numel() * part.itemsize for part in payload(batch))
        return batch
