"""Root-mean-square norm with its statistics in fp32, alone or right after a sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tp_dflash.drafter.compiled import compiled_in_training


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; in and out in one dtype, inside in fp32.

    Kept for the backward pass are its input and one fp32 number a row, never an fp32 copy of the input.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        return compiled_in_training(normed, rows.device)(rows, self.weight, self.eps)

    def after_sum(self, rows: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """(rows + more, the norm of that): one pass on GPUs, where two would read the sum again."""
        return compiled_in_training(_sum_and_normed, rows.device)(rows, more, self.weight, self.eps)


def normed(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm as a function."""
    return F.rms_norm(rows, weight.shape, weight, eps)


def _sum_and_normed(rows: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = rows + more
    return total, normed(total, weight, eps)
