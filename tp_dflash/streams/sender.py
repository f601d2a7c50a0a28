"""A target rank's end of the streams: compute a pack into a free buffer, send it, run ahead, be held back.

In: a function that writes a layout's features, the links to the drafter ranks. Out: messages in plan order. At most two packs
are in flight (computed, but not yet taken by their drafters): before a third, the oldest one's receipt is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.streams.contract import agree_on_contract
from tp_dflash.streams.errors import DrafterFailed, StreamError
from tp_dflash.streams.link import Link, Posted, Tag, say_farewell
from tp_dflash.streams.message import MESSAGE_BYTES, Message, State
from tp_dflash.streams.meters import StreamMeters
from tp_dflash.streams.payload import PayloadShapes, Slot, payload
from tp_dflash.streams.stream_end import StreamEnd
from tp_dflash.streams.transport import Transfer, make_transport
from tp_dflash.streams.waiting import Waiting

PACKS_IN_FLIGHT = 2

ComputeFeatures = Callable[[BlockLayout, FeatureBatch], FeatureBatch]


@dataclass(frozen=True, eq=False)
class _Sent:
    """A pack in flight. transfer: None for an empty pack."""

    message: Message
    link: Link
    header: Posted
    receipt: Posted
    transfer: Transfer | None


class FeatureSender(StreamEnd):
    """Use it as a context manager: leaving it with an error tells every drafter rank before this rank ends."""

    def __init__(
        self,
        compute: ComputeFeatures,
        groups: Mapping[int, ProcessGroup],
        drafter_of: Callable[[int], int],
        shapes: PayloadShapes,
        device: torch.device,
        limit_seconds: float,
    ) -> None:
        """groups: this rank's pair groups by the drafter's rank; drafter_of: rank that a pack id belongs to.

        compute: writes a layout's features into the given batch (target.features). limit_seconds: of every wait.
        """
        self._compute = compute
        self._drafter_of = drafter_of
        self._links = {rank: Link(group, "target", limit_seconds) for rank, group in groups.items()}
        agree_on_contract(list(self._links.values()), shapes)
        self._transport = make_transport(device, PACKS_IN_FLIGHT)
        self._slots = [Slot(shapes, device) for _ in range(PACKS_IN_FLIGHT)]
        self._in_flight: deque[_Sent] = deque()
        self._waiting = Waiting(device)
        self._packs = self._empty_packs = self._bytes = 0

    def send(self, layout: BlockLayout) -> None:
        """Compute and send one pack; waits first while two packs are in flight."""
        while len(self._in_flight) >= PACKS_IN_FLIGHT:
            self._await_oldest()
        slot = self._slots[(self._packs + self._empty_packs) % PACKS_IN_FLIGHT]
        parts = payload(self._compute(layout, slot.batch(layout))) if layout.pack.documents else []
        link = self._links[self._drafter_of(layout.pack.pack_id)]
        header = Message.about(layout, waited_us=int(1e6 * self._waiting.seconds))
        self._in_flight.append(
            _Sent(
                message=header,
                link=link,
                receipt=link.receive(torch.empty(MESSAGE_BYTES, dtype=torch.uint8), Tag.RECEIPT),
                header=link.send(header.encode(), Tag.HEADER),
                transfer=self._transport.send(link, parts) if parts else None,
            )
        )
        self._packs += bool(parts)
        self._empty_packs += not parts
        self._bytes += sum(part.numel() * part.itemsize for part in parts)

    def finish(self) -> None:
        """Wait until everything that was sent has been taken."""
        while self._in_flight:
            self._await_oldest()

    def fail(self, error: BaseException) -> None:
        """Tell every drafter rank that no more packs will come, and why; waits at most a few seconds in all."""
        say_farewell(self._links.values(), error, Tag.HEADER)
        self._transport.abort([link.group for link in self._links.values()])

    def meters(self) -> StreamMeters:
        """Packs and bytes sent and the time waited for drafters, since this sender was made."""
        waiting = self._waiting
        return StreamMeters(self._packs, self._empty_packs, self._bytes, waiting.elapsed, waiting.seconds, 0.0)

    def _await_oldest(self) -> None:
        sent = self._in_flight.popleft()
        what = f"the receipt of {sent.message.name}"
        with self._waiting.measured():
            receipt = Message.decode(sent.receipt.wait(what))
            if receipt.state is State.TAKEN:
                sent.header.wait(what)
                if sent.transfer is not None:
                    sent.transfer.wait(what)
        _check_receipt(receipt, sent)


def _check_receipt(receipt: Message, sent: _Sent) -> None:
    link, name = sent.link, sent.message.name
    if receipt.state is not State.TAKEN:
        link.ended = True
        raise DrafterFailed(f"{link.here}: {link.there} answered {name} with {receipt.state.name}", receipt.text)
    if (receipt.pack_id, receipt.epoch) != (sent.message.pack_id, sent.message.epoch):
        raise StreamError(
            f"{link.here}: expected the receipt of {name} from {link.there}, got that of {receipt.name}; target and drafter "
            "ranks must follow the same plan"
        )
