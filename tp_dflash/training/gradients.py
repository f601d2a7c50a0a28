"""The gradient of a step, after all micro-batches: one division, one norm over every rank, one clipping factor.

In: gradients that are sums over rows. Out: gradients of the ratio (sum of w l) / (sum of w), clipped by a norm in which
every parameter counts once, however many ranks hold a copy or a part of it. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class ShardedParameters:
    """Parameters whose parts over ``group`` make up ``copies`` whole sets: 1 where each rank holds its own part."""

    parameters: Sequence[Tensor]
    group: ProcessGroup | None
    copies: int = 1


def global_norm(parts: Sequence[ShardedParameters], device: torch.device) -> Tensor:
    """2-norm of all gradients, fp32 scalar, the same bits on every rank of each group.

    Squares are summed over this rank's part, then over the group (all-reduce, sum; no gradient flows through it), and
    divided by the number of copies that were counted.
    """
    total = torch.zeros((), dtype=torch.float32, device=device)
    for part in parts:
        squares = torch.zeros_like(total)
        if gradients := _local_gradients(part.parameters):
            squares += torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).square().sum()
        if part.group is not None:
            dist.all_reduce(squares, group=part.group)
        total += squares / part.copies
    return total.sqrt()


def finish_gradients(parts: Sequence[ShardedParameters], weight_sum: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """Turn summed gradients into the clipped gradient of the ratio, in place.

    weight_sum: sum of weights over every rank and micro-batch, > 0, scalar on the gradients' device.
    Returns (norm before clipping, 1.0 if anything in it is not finite else 0.0), both scalars on the device. A gradient
    that is not finite stays so: the optimizer must skip the step.
    """
    norm = global_norm(parts, weight_sum.device) / weight_sum
    clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in parts:
        gradients = _local_gradients(part.parameters)
        if gradients:
            torch._foreach_mul_(gradients, clip / weight_sum)
    return norm, (~torch.isfinite(norm)).float()


def _local_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
