"""Root-mean-square norm with its statistics in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; in and out in one dtype, inside in fp32.

    Torch's own operator is used: on GPUs it keeps only its input and one fp32 number a row for the backward pass,
    never an fp32 copy of the input.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, self.weight.shape, self.weight, self.eps)
