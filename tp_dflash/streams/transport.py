"""How payloads move on one kind of device: on the host with gloo, on GPUs with NCCL on streams of their own.

In: tensors in preallocated buffers. Out: transfers that can be waited for with a limit. On a GPU a transfer starts after the
work that is queued on the current stream (which wrote the data, or last read the buffer), runs beside what is queued later,
and is waited for by polling an event: while everything is on time, the host never waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.streams.link import Link, Posted, Tag

_POLL_SECONDS = 0.0002


class Transfer(Protocol):
    """One payload on its way."""

    def wait(self, what: str) -> None:
        """Until it is complete on the host's side; later work on the current stream then sees it. StreamError if late."""


class Transport(Protocol):
    """Moves payloads over links, and marks moments in the device's time."""

    def send(self, link: Link, parts: Sequence[Tensor]) -> Transfer: ...

    def receive(self, link: Link, parts: Sequence[Tensor], whole: Sequence[Tensor]) -> Transfer:
        """``parts``: exactly what will arrive; ``whole``: the buffers' full extent around it."""

    def abort(self, groups: Sequence[ProcessGroup]) -> None:
        """Give up what is still posted, so that the process can end."""


def make_transport(device: torch.device, num_slots: int) -> Transport:
    return CudaTransport(device, num_slots) if device.type == "cuda" else HostTransport()


class HostTransfer:
    def __init__(self, posted: list[Posted]) -> None:
        self._posted = posted

    def wait(self, what: str) -> None:
        for posted in self._posted:
            posted.wait(what)


class HostTransport:
    """gloo: the host's buffers are used directly."""

    def send(self, link: Link, parts: Sequence[Tensor]) -> HostTransfer:
        return HostTransfer([link.send(part, Tag.PAYLOAD) for part in parts])

    def receive(self, link: Link, parts: Sequence[Tensor], whole: Sequence[Tensor]) -> HostTransfer:
        # gloo ends the process when a message is longer than its buffer, before the header could say that the pack is
        # the wrong one; a shorter message is fine. No pack is longer than the whole buffer.
        return HostTransfer([link.receive(part, Tag.PAYLOAD) for part in whole])

    def abort(self, groups: Sequence[ProcessGroup]) -> None:
        pass


class CudaTransfer:
    def __init__(self, link: Link, done: torch.cuda.Event) -> None:
        self._link, self._done = link, done

    def wait(self, what: str) -> None:
        deadline = time.monotonic() + self._link.limit_seconds
        while not self._done.query():
            if time.monotonic() > deadline:
                raise self._link.late(what)
            time.sleep(_POLL_SECONDS)
        torch.cuda.current_stream().wait_event(self._done)


class CudaTransport:
    """NCCL: one side stream for each buffer, so that transfers of two peers do not wait for each other.

    The buffers are made once and outlive every transfer, so the allocator need not be told of the side streams.
    """

    def __init__(self, device: torch.device, num_slots: int) -> None:
        self._device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(num_slots)]
        self._next = 0

    def send(self, link: Link, parts: Sequence[Tensor]) -> CudaTransfer:
        return self._move(link, parts, is_send=True)

    def receive(self, link: Link, parts: Sequence[Tensor], whole: Sequence[Tensor]) -> CudaTransfer:
        return self._move(link, parts, is_send=False)

    def abort(self, groups: Sequence[ProcessGroup]) -> None:
        for group in groups:
            group._get_backend(self._device).abort()

    def _move(self, link: Link, parts: Sequence[Tensor], is_send: bool) -> CudaTransfer:
        stream = self._streams[self._next]
        self._next = (self._next + 1) % len(self._streams)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            post = link.send if is_send else link.receive
            posted = [post(part.view(torch.uint8), Tag.PAYLOAD) for part in parts]
            for one in posted:
                # NCCL's wait only orders this stream after the transfer; the host goes on.
                assert one.work is not None
                one.work.wait()
            done = torch.cuda.Event()
            done.record(stream)
        return CudaTransfer(link, done)
