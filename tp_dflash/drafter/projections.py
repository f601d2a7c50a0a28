"""Several matrices applied to the same rows, whose gradient is summed inside the products that make it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def projected(rows: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """rows @ weight.T for each weight (outputs, inputs); the same numbers as one linear layer each.

    Plain autograd would write a gradient of the rows for each weight and then add them up, pass by pass; here every product
    but the first adds to what is there.
    """
    return _Projected.apply(rows, *weights)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(rows, *weights)
        return tuple(F.linear(rows, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        flat_RI = rows.flatten(0, -2)
        flat_grads = [grad.flatten(0, -2) for grad in grads]
        wants_rows, *wants_weights = ctx.needs_input_grad
        grad_RI = None
        if wants_rows:
            grad_RI = flat_grads[0] @ weights[0]
            for grad, weight in zip(flat_grads[1:], weights[1:], strict=True):
                grad_RI.addmm_(grad, weight)
        grad_weights = [
            grad.T @ flat_RI if wants else None for grad, wants in zip(flat_grads, wants_weights, strict=True)
        ]
        return (None if grad_RI is None else grad_RI.view_as(rows), *grad_weights)
