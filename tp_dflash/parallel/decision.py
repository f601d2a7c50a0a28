"""One rank looks, all ranks know: what is read or decided once is the same on every rank, errors included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

Result = TypeVar("Result")


class DecisionError(RuntimeError):
    """The rank that decides for all failed; the message is its own, raised alike on every rank."""


def decided_by_first(decide: Callable[[], Result], group: ProcessGroup) -> Result:
    """Run ``decide`` on the group's first rank and return its (picklable) result on all ranks.

    An error of the kinds that a user can cause becomes the same DecisionError everywhere; a rank that waits for a decision
    is never left alone with it. broadcast of an object on the host, no adjoint.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank(group) == 0:
        try:
            outcome[0] = decide()
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            outcome[1] = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[1] is not None:
        raise DecisionError(outcome[1])
    return outcome[0]
