"""The matrix products of the head: logits from rows, rows from gradients, the weight's gradient; operands in, fp32 out.

Comes in: operands of one dtype (bf16, fp32 or fp64). Goes out: results in an output of the caller's, in fp32 for bf16
operands, so that no logit and no partial sum is ever rounded to bf16 on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def working_dtype(operands: torch.dtype) -> torch.dtype:
    """What products of such operands are formed in: fp64 for fp64, else fp32."""
    return torch.float64 if operands == torch.float64 else torch.float32


def project(rows_CD: Tensor, head_vD: Tensor, out_Cv: Tensor) -> None:
    """out_Cv = rows_CD @ head_vD.T, rounded once to the dtype of ``out_Cv``."""
    _product(rows_CD, head_vD.T, out_Cv)


def pull_back(grad_Cv: Tensor, head_vD: Tensor, out_CD: Tensor) -> None:
    """out_CD = grad_Cv @ head_vD: this shard's part of the hidden gradient (the adjoint of ``project``)."""
    _product(grad_Cv, head_vD, out_CD)


def add_weight_gradient(grad_Cv: Tensor, rows_CD: Tensor, sum_vD: Tensor) -> None:
    """sum_vD += grad_Cv.T @ rows_CD, accumulated in fp32 (fp64) over chunks."""
    if _widens_on_device(grad_Cv, sum_vD):
        torch.addmm(sum_vD, grad_Cv.T, rows_CD, out_dtype=sum_vD.dtype, out=sum_vD)
    else:
        sum_vD.addmm_(grad_Cv.to(sum_vD.dtype).T, rows_CD.to(sum_vD.dtype))


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    if left.dtype == out.dtype and left.device.type != "cpu":
        torch.mm(left, right, out=out)
    elif _widens_on_device(left, out):
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        working = working_dtype(left.dtype)
        out.copy_(left.to(working) @ right.to(working))


def _widens_on_device(operand: Tensor, out: Tensor) -> bool:
    return operand.device.type == "cuda" and operand.dtype == torch.bfloat16 and out.dtype == torch.float32


@contextmanager
def exact_reductions() -> Iterator[None]:
    """Inside, cuBLAS adds the parts of a split product in fp32, never in bf16; the caller's setting comes back after."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
