"""Rotary position embedding over the full head, rotate-half, frequencies and angles in fp32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.drafter.compiled import compiled_on_gpu
from tp_dflash.drafter.norm import RMSNorm, normed


@dataclass(frozen=True, eq=False)
class Rotary:
    """Turns heads by their rows' positions: plain RoPE, no scaling (spec section 4).

    position_PR: positions inside the document, int64. The pair (j, j + E/2) of a head turns by position * theta^(-2j/E).
    Holds positions and not cosines: FSDP2's mixed precision casts every floating-point tensor that enters a module,
    also inside a dataclass, and angles in bf16 would be off by whole radians; integers it leaves alone.
    """

    position_PR: Tensor
    theta: float

    def rotate(self, heads_PRHE: Tensor, norm: RMSNorm) -> Tensor:
        """Norm every head, then turn it by its row's angles; inside in fp32, returned in the dtype that came in.

        On GPUs one pass forward and one back, which keep the heads as they came in: as many graphs as there are shapes in
        training, one for all of them in decoding.
        """
        run = compiled_on_gpu(_normed_and_turned, heads_PRHE.device, dynamic=not torch.is_grad_enabled())
        return run(heads_PRHE, norm.weight, norm.eps, self.position_PR, self.theta)


def _normed_and_turned(heads_PRHE: Tensor, weight_E: Tensor, eps: float, position_PR: Tensor, theta: float) -> Tensor:
    return _turned(normed(heads_PRHE, weight_E, eps), position_PR, theta)


def _cos_sin(position_PR: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """(P, R, 1, E/2) each, fp32, by the same fp32 steps that servers take."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_PR.device) / head_dim
    angle = position_PR.float()[:, :, None, None] * (1.0 / theta**exponent)
    return angle.cos(), angle.sin()


def _turned(heads_PRHE: Tensor, position_PR: Tensor, theta: float) -> Tensor:
    cos, sin = _cos_sin(position_PR, heads_PRHE.shape[-1], theta)
    exact = torch.promote_types(heads_PRHE.dtype, torch.float32)
    first, second = heads_PRHE.to(exact).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(heads_PRHE.dtype)
