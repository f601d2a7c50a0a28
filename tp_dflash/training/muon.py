"""Muon: each hidden matrix moves along the orthogonalised direction of its momentum.

In: sharded fp32 matrices with gradients. Out: moved matrices. The direction belongs to the whole matrix, not to a rank's rows
of it: it is gathered, orthogonalised, and this rank's rows of the result are kept. Matrices of one shape move together, so that
a small drafter's update is not mostly the starting of kernels. Formulas: K. Jordan and others, "Muon: an
optimizer for hidden layers in neural networks" (2024), which gives the momentum and the Newton-Schulz iteration with its
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
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MATCHED_RMS = 0.2
# Of matrices that move together, at most so many numbers (or one matrix): bounds what an update holds beside its state.
_MOST_NUMBERS = 1 << 26


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

        All-gather of the directions over the ranks that share them, in the same order on all of them, out of place.
        """
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            for alike in _alike(matrices):
                self._move(alike, group["lr"], group["momentum"], group["weight_decay"])

    def _move(self, matrices: Sequence[Tensor], rate: float, momentum: float, weight_decay: float) -> None:
        """Matrices of one shape, and this rank's part of their momentum. Shape letters: G matrices, r this rank's rows."""
        states = [self._state_of(matrix) for matrix in matrices]
        locals_, kept = [_local(matrix) for matrix in matrices], [_local(state["exp_avg"]) for state in states]
        gradient_GrC = torch.stack([_local(matrix.grad) for matrix in matrices if matrix.grad is not None])
        kept_GrC = torch.stack(kept)
        moved_GrC = kept_GrC.lerp(gradient_GrC, 1 - momentum)
        direction_GRC = _whole(gradient_GrC.lerp(moved_GrC, momentum).bfloat16(), matrices[0])
        update_GrC = _own_part(orthogonalised(direction_GRC), matrices[0]).float()
        scale = _MATCHED_RMS * max(matrices[0].shape) ** 0.5
        step_GrC = rate * (scale * update_GrC + weight_decay * torch.stack(locals_))
        if self.skip is not None:
            # Chosen, not multiplied: a skipped step's update may be NaN, which times 0 stays NaN.
            moved_GrC = torch.where(self.skip > 0, kept_GrC, moved_GrC)
            step_GrC = torch.where(self.skip > 0, 0.0, step_GrC)
        torch._foreach_copy_(kept, list(moved_GrC.unbind()))
        torch._foreach_sub_(locals_, list(step_GrC.unbind()))
        torch._foreach_add_([state["step"] for state in states], 1.0 if self.skip is None else 1.0 - self.skip)

    def _state_of(self, matrix: Tensor) -> dict[str, Tensor]:
        state = self.state[matrix]
        if not state:
            state["exp_avg"] = torch.zeros_like(matrix)
            state["step"] = torch.zeros((), dtype=torch.float32, device=matrix.device)
        return state


def orthogonalised(matrix_GRC: Tensor) -> Tensor:
    """About U V^T of each matrix U S V^T (singular values between 0.7 and 1.2), by Newton-Schulz in the input's dtype."""
    a, b, c = _COEFFICIENTS
    tall = matrix_GRC.shape[1] > matrix_GRC.shape[2]
    x_GRC = matrix_GRC.mT if tall else matrix_GRC
    x_GRC = x_GRC / x_GRC.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).to(x_GRC.dtype)
    for _ in range(_ITERATIONS):
        gram_GRR = x_GRC @ x_GRC.mT
        x_GRC = torch.baddbmm(x_GRC, torch.baddbmm(gram_GRR, gram_GRR, gram_GRR, beta=b, alpha=c), x_GRC, beta=a)
    return x_GRC.mT if tall else x_GRC


def _alike(matrices: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Matrices of one shape, as many together as may move at once."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for shape, alike in by_shape.items():
        together = max(1, _MOST_NUMBERS // shape.numel())
        yield from (alike[start : start + together] for start in range(0, len(alike), together))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(local_GrC: Tensor, like: Tensor) -> Tensor:
    """The ranks' rows of matrices that are spread as ``like`` is, put together on every rank."""
    if not isinstance(like, DTensor) or like.device_mesh.size() == 1:
        return local_GrC
    shape = torch.Size((len(local_GrC), *like.shape))
    stride = (like.numel(), *like.stride())
    spread = DTensor.from_local(
        local_GrC, like.device_mesh, _stacked(like), run_check=False, shape=shape, stride=stride
    )
    return spread.full_tensor()


def _own_part(whole_GRC: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor) or like.device_mesh.size() == 1:
        return whole_GRC
    replicated = DTensor.from_local(whole_GRC, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=_stacked(like)).to_local()


def _stacked(like: DTensor) -> list[Placement]:
    """How matrices that are spread as ``like`` is are spread once they are stacked: one dim further."""
    return [Shard(each.dim + 1) if isinstance(each, Shard) else each for each in like.placements]
