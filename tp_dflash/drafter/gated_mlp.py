"""SwiGLU whose backward pass keeps two wide tensors instead of four."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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
        return F.linear(F.silu(gate) * up, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, down = ctx.saved_tensors
        active = F.silu(gate)
        grad_down = rearrange(grad, "... d -> (...) d").T @ rearrange(active * up, "... i -> (...) i")
        grad_product = grad @ down
        grad_up = grad_product * active
        grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        return grad_gate, grad_up, grad_down
