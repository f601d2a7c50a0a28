"""Rotary position embedding over the full head, rotate-half, frequencies and angles in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tp_dflash.drafter.compiled import compiled_on_gpu


@dataclass(frozen=True, eq=False)
class Rotary:
    """Turns heads by their rows' positions: plain RoPE, no scaling (docs/blocks.md).

    position_PR: positions inside the document, int64. The pair (j, j + E/2) of a head turns by position * theta^(-2j/E).
    Holds positions and not cosines: FSDP2's mixed precision casts every floating-point tensor that enters a module,
    also inside a dataclass, and angles in bf16 would be off by whole radians; integers it leaves alone.
    """

    position_PR: Tensor
    theta: float

    def rotate(self, heads_PRHE: Tensor) -> Tensor:
        """Turn every head by its row's angles; computed in fp32, returned in the dtype that came in."""
        return _Rotate.apply(heads_PRHE, self.position_PR, self.theta)


class _Rotate(torch.autograd.Function):
    """A rotation; its adjoint is the rotation back. Only the positions are kept, nothing as large as the heads."""

    @staticmethod
    def forward(ctx: Any, heads_PRHE: Tensor, position_PR: Tensor, theta: float) -> Tensor:
        ctx.save_for_backward(position_PR)
        ctx.theta = theta
        return compiled_on_gpu(_turned, heads_PRHE.device, dynamic=True)(heads_PRHE, position_PR, theta, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PRHE: Tensor) -> tuple[Tensor, None, None]:
        (position_PR,) = ctx.saved_tensors
        turned = compiled_on_gpu(_turned, grad_PRHE.device, dynamic=True)(grad_PRHE, position_PR, ctx.theta, -1.0)
        return turned, None, None


def _cos_sin(position_PR: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """(P, R, 1, E/2) each, fp32, by the same fp32 steps that servers take."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_PR.device) / head_dim
    angle = position_PR.float()[:, :, None, None] * (1.0 / theta**exponent)
    return angle.cos(), angle.sin()


def _turned(heads_PRHE: Tensor, position_PR: Tensor, theta: float, direction: float) -> Tensor:
    """``direction`` 1: by each row's angles; -1: back."""
    cos, sin = _cos_sin(position_PR, heads_PRHE.shape[-1], theta)
    sin = direction * sin
    exact = torch.promote_types(heads_PRHE.dtype, torch.float32)
    first, second = heads_PRHE.to(exact).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(heads_PRHE.dtype)
