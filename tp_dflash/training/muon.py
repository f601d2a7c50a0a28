"""Muon: each hidden matrix moves along the orthogonalised direction of its momentum.

In: sharded fp32 matrices with gradients. Out: moved matrices. The direction belongs to the whole matrix, not to a rank's rows
of it: each is gathered, orthogonalised, and this rank's rows of the result are kept. Formulas: K. Jordan and others, "Muon:
an optimizer for hidden layers in neural networks" (2024), which gives the momentum and the Newton-Schulz iteration with its
coefficients; the factor 0.2 sqrt(max(rows, columns)), with which AdamW's learning rates serve, is from J. Liu and others,
"Muon is scalable for LLM training" (arXiv 2502.16982).

torch.optim.Muon computes the same on whole matrices. It is not used because it cannot leave out a step by a flag on the device,
and because it runs each small operation of each matrix through DTensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MATCHED_RMS = 0.2
# Matrices of one shape are iterated together, at most so many numbers at once.
_MOST_NUMBERS = 1 << 27


class Muon(Optimizer):
    """Nesterov momentum, orthogonalisation in bf16, decoupled weight decay. Parameters: matrices, plain or DTensors."""

    def __init__(self, matrices: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        wrong = next((tuple(matrix.shape) for matrix in matrices if matrix.ndim != 2), None)
        if wrong is not None:
            raise ValueError(f"expected matrices, got a parameter of shape {wrong}; give it to AdamW")
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.skip: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every matrix; where the device scalar ``skip`` is 1.0 nothing changes, and nobody waits for it.

        All-gather of each matrix's direction over the ranks that share it, in the same order on all of them, out of place.
        """
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            directions = [self._direction(matrix, group["momentum"]) for matrix in matrices]
            for index in _alike(directions):
                whole_GRC = torch.stack([directions[i] for i in index])
                for i, update_RC in zip(index, orthogonalised(whole_GRC), strict=True):
                    self._move(matrices[i], update_RC, group["lr"], group["weight_decay"])

    def _direction(self, matrix: Tensor, momentum: float) -> Tensor:
        """The whole matrix's Nesterov direction in bf16; this rank's part of the momentum moves on."""
        state = self.state[matrix]
        if not state:
            state["exp_avg"] = torch.zeros_like(matrix)
            state["step"] = torch.zeros((), dtype=torch.float32, device=matrix.device)
        assert matrix.grad is not None
        kept, gradient = _local(state["exp_avg"]), _local(matrix.grad)
        moved = kept.lerp(gradient, 1 - momentum)
        direction = gradient.lerp(moved, momentum).bfloat16()
        kept.copy_(moved if self.skip is None else torch.where(self.skip > 0, kept, moved))
        state["step"] += 1.0 if self.skip is None else 1.0 - self.skip
        return _whole(direction, matrix)

    def _move(self, matrix: Tensor, update_RC: Tensor, rate: float, weight_decay: float) -> None:
        local = _local(matrix)
        step = _MATCHED_RMS * max(matrix.shape) ** 0.5 * _own_part(update_RC, matrix).float() + weight_decay * local
        # A skipped step's update may be NaN, which times 0 stays NaN.
        local -= rate * (step if self.skip is None else torch.where(self.skip > 0, 0.0, step))


def orthogonalised(matrix_GRC: Tensor) -> Tensor:
    """About U V^T of each matrix U S V^T (singular values between 0.7 and 1.2), by Newton-Schulz in the input's dtype."""
    a, b, c = _COEFFICIENTS
    tall = matrix_GRC.shape[1] > matrix_GRC.shape[2]
    x_GRC = matrix_GRC.mT if tall else matrix_GRC
    x_GRC = x_GRC / x_GRC.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).to(x_GRC.dtype)
    for _ in range(_ITERATIONS):
        gram_GRR = x_GRC @ x_GRC.mT
        x_GRC = a * x_GRC + (b * gram_GRR + c * gram_GRR @ gram_GRR) @ x_GRC
    return x_GRC.mT if tall else x_GRC


def _alike(matrices: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indices of matrices of one shape, as many together as may be iterated at once."""
    by_shape: dict[torch.Size, list[int]] = {}
    for index, matrix in enumerate(matrices):
        by_shape.setdefault(matrix.shape, []).append(index)
    for shape, indices in by_shape.items():
        together = max(1, _MOST_NUMBERS // shape.numel())
        yield from (indices[start : start + together] for start in range(0, len(indices), together))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(local: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or like.device_mesh.size() == 1:
        return local
    sharded = DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded.full_tensor()


def _own_part(whole: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or like.device_mesh.size() == 1:
        return whole
    replicated = DTensor.from_local(whole, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements).to_local()
