"""One (target, drafter) pair's process group, with the names that errors need.

In: a group of two ranks that carries host tensors (gloo) and, on GPUs, device tensors (NCCL). Out: posted sends and receives
whose waits have a limit. Each kind of message has a tag of its own.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.streams.errors import PeerLost, StreamError
from tp_dflash.streams.message import Message, State

Role = Literal["target", "drafter"]
# A failing rank must end soon even if nobody listens.
_FAREWELL_SECONDS = 5.0


class Tag(IntEnum):
    CONTRACT = 11
    HEADER = 12
    RECEIPT = 13
    PAYLOAD = 14


class Link:
    """The stream between this rank and one peer. role: this rank's.

    ended: nothing more can be told to the peer: it has failed, refused, is gone, or a wait for it has run out (gloo closes
    the connection then).
    """

    def __init__(self, group: ProcessGroup, role: Role, limit_seconds: float) -> None:
        self.group = group
        self.limit_seconds = limit_seconds
        self.ended = False
        self._peer = 1 - dist.get_rank(group)
        here, there = (dist.get_global_rank(group, rank) for rank in (1 - self._peer, self._peer))
        other = "drafter" if role == "target" else "target"
        self.here, self.there = f"{role} rank {here}", f"{other} rank {there}"

    def send(self, tensor: Tensor, tag: Tag) -> Posted:
        """Post a send; ``tensor`` must stay as it is until the send is done. PeerLost if the connection is closed."""
        with self._naming(f"the sending of its {tag.name.lower()}"):
            return Posted(self, dist.isend(tensor, group=self.group, group_dst=self._peer, tag=tag), tensor)

    def receive(self, tensor: Tensor, tag: Tag) -> Posted:
        """Post a receive into ``tensor``. PeerLost if the connection is closed."""
        with self._naming(f"its {tag.name.lower()}"):
            return Posted(self, dist.irecv(tensor, group=self.group, group_src=self._peer, tag=tag), tensor)

    def wait(self, work: dist.Work, what: str, limit_seconds: float | None = None) -> None:
        """Block the host until a host tensor has been sent or received; StreamError or PeerLost that say ``what`` it was."""
        with self._naming(what):
            work.wait(timedelta(seconds=self.limit_seconds if limit_seconds is None else limit_seconds))

    def late(self, what: str) -> StreamError:
        self.ended = True
        return StreamError(
            f"{self.here} waited more than {self.limit_seconds:.0f} s for {self.there} ({what}); see that rank's log, or raise "
            "training.timeout_seconds"
        )

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "timed out" in str(error).lower():
                raise self.late(what) from None
            self.ended = True
            reason = str(error).strip().split("\n")[0]
            raise PeerLost(f"{self.here} lost {self.there} while it waited for {what}: {reason}") from None


@dataclass(frozen=True, eq=False)
class Posted:
    """A posted send or receive and the tensor that it uses."""

    link: Link
    work: dist.Work | None
    tensor: Tensor

    def wait(self, what: str, limit_seconds: float | None = None) -> Tensor:
        """The host tensor, once it has been sent or received (see ``Link.wait``)."""
        assert self.work is not None
        self.link.wait(self.work, what, limit_seconds)
        return self.tensor


def say_farewell(links: Collection[Link], error: BaseException, tag: Tag) -> None:
    """Tell every peer that still listens that this rank ends, and why; waits at most a few seconds in all."""
    text = "".join(traceback.format_exception(error))
    posted = []
    for link in links:
        if not link.ended:
            with contextlib.suppress(PeerLost):
                posted.append(link.send(Message(State.FAILED, text=text).encode(), tag))
    for farewell in posted:
        with contextlib.suppress(StreamError):
            farewell.wait("its farewell", _FAREWELL_SECONDS / len(posted))
