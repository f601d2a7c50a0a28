"""SwiGLU whose backward pass keeps two wide tensors instead of four."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tp_dflash.drafter.compiled import compiled_on_gpu


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return _GatedDown.apply(self.gate_proj(rows), self.up_proj(rows), self.down_proj.weight)


class _GatedDown(torch.autograd.Function):
    """(silu(gate) * up) @ down.T with the product recomputed in the backward pass.

    Plain autograd would keep gate, up, silu(gate) and the product: four tensors as wide as the MLP. Only gate and up are
    kept (block rows x MLP width each); one elementwise pass brings the product back for down's gradient.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, down)
        return F.linear(compiled_on_gpu(_product, gate.device, dynamic=True)(gate, up), down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, down = ctx.saved_tensors
        gradients = compiled_on_gpu(_product_and_gradients, gate.device, dynamic=True)
        product, grad_gate, grad_up = gradients(gate, up, grad @ down)
        grad_down = rearrange(grad, "... d -> (...) d").T @ rearrange(product, "... i -> (...) i")
        return grad_gate, grad_up, grad_down


def _product(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _product_and_gradients(gate: Tensor, up: Tensor, grad_product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One pass over three tensors as wide as the MLP that writes three."""
    active = F.silu(gate)
    return active * up, torch.ops.aten.silu_backward(grad_product * up, gate), grad_product * active
