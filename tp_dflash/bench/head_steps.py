"""The steps that are compared: the sharded loss, its bare matrix products, and what one would write or install instead.

Comes in: a rank's problem. Goes out: functions that run one forward and backward pass. Each rival gets whole heads on one
rank and every teacher row; what it leaves out of the work (a term, the teacher) is in its name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from tp_dflash.bench.head_problem import HeadProblem
from tp_dflash.bench.head_timing import Step
from tp_dflash.head import sharded_head_loss
from tp_dflash.head.products import exact_reductions, project, pull_back, working_dtype
from tp_dflash.head.sharded_loss import LogitsPrecision

# Rows of a chunk in the compiled rival; larger ones do not run faster.
_COMPILED_CHUNK = 2048


def sharded_step(
    problem: HeadProblem,
    group: ProcessGroup | None,
    host_group: ProcessGroup | None,
    precision: LogitsPrecision = "float32",
    shares_teachers: bool = False,
) -> Step:
    """This project's loss: kl + ce, all metrics, gradients of the own rows."""
    hidden_ND = problem.hidden_ND.detach().clone().requires_grad_()

    def step() -> None:
        hidden_ND.grad = None
        loss = sharded_head_loss(
            hidden_ND,
            problem.teacher_hidden_UD,
            problem.teacher_index_N,
            problem.labels_N,
            problem.weights_N,
            drafter_head=problem.head,
            teacher_head=problem.head,
            objective=problem.objective,
            block_size=problem.sizes.block_size,
            group=group,
            host_group=host_group,
            chunk_rows=problem.sizes.chunk_rows,
            teacher_rows=problem.teacher_hidden_UD.shape[0] if shares_teachers else None,
            logits_precision=precision,
        )
        loss.loss_sum.backward()

    return step


def products_step(problem: HeadProblem, precision: LogitsPrecision = "float32") -> Step:
    """The three matrix products of all ranks' rows with this rank's shard, chunk after chunk, and nothing else."""
    sizes, head_vD = problem.sizes, problem.head.rows_vD
    chunk = min(sizes.chunk_rows, sizes.rows)
    rows_ND = torch.randn((sizes.rows, sizes.width), device=head_vD.device).to(head_vD.dtype)
    grad_Cv = torch.randn((chunk, head_vD.shape[0]), device=head_vD.device).to(head_vD.dtype)
    working = working_dtype(head_vD.dtype)
    logits_dtype = torch.bfloat16 if precision == "bfloat16" else working

    def step() -> None:
        drafter_Cv, teacher_Cv = (grad_Cv.new_empty(grad_Cv.shape, dtype=logits_dtype) for _ in range(2))
        partial_CD = grad_Cv.new_empty((chunk, sizes.width), dtype=working)
        with exact_reductions():
            for rows_CD in rows_ND.split(chunk):
                count = rows_CD.shape[0]
                project(rows_CD, head_vD, drafter_Cv[:count])
                project(rows_CD, head_vD, teacher_Cv[:count])
                pull_back(grad_Cv[:count], head_vD, partial_CD[:count])

    return step


def plain_step(problem: HeadProblem) -> Step:
    """Whole logits and autograd, in fp32 after the products: the obvious way."""
    return _autograd_step(problem, lambda h, t, y: _kl_ce(h, t, y, problem.head.rows_vD))


def compiled_step(problem: HeadProblem) -> Step:
    """Chunks that are recomputed in the backward pass, compiled."""
    chunk_loss = torch.compile(_kl_ce)

    def loss(hidden_ND: Tensor, teacher_ND: Tensor, labels_N: Tensor) -> Tensor:
        total = hidden_ND.new_zeros((), dtype=torch.float32)
        chunks = zip(*(rows.split(_COMPILED_CHUNK) for rows in (hidden_ND, teacher_ND, labels_N)), strict=True)
        for h, t, y in chunks:
            part = checkpoint(chunk_loss, h, t, y, problem.head.rows_vD, use_reentrant=False)
            total = total + part
        return total

    return _autograd_step(problem, loss)


def liger_jsd_step(problem: HeadProblem) -> Step:
    """Liger's fused linear JSD with beta 0: KL only, no ce, no metrics."""
    from liger_kernel.transformers import LigerFusedLinearJSD

    fused = LigerFusedLinearJSD(jsd_beta=0.0)
    weight = problem.head.rows_vD
    return _autograd_step(problem, lambda h, t, y: fused(h, weight, t, weight, y))


def liger_ce_step(problem: HeadProblem) -> Step:
    """Liger's fused linear cross-entropy: no teacher."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss()
    return _autograd_step(problem, lambda h, t, y: fused(problem.head.rows_vD, h, y))


def cut_cross_entropy_step(problem: HeadProblem) -> Step:
    """Apple's cut-cross-entropy: no teacher."""
    from cut_cross_entropy import linear_cross_entropy

    return _autograd_step(problem, lambda h, t, y: linear_cross_entropy(h, problem.head.rows_vD, y))


def installed(package: str) -> bool:
    """Whether a rival's package can be imported here."""
    return importlib.util.find_spec(package) is not None


def _autograd_step(problem: HeadProblem, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
    hidden_ND, teacher_ND = problem.hidden_ND.detach().clone().requires_grad_(), problem.teacher_rows_N()

    def step() -> None:
        hidden_ND.grad = None
        loss(hidden_ND, teacher_ND, problem.labels_N).backward()

    return step


def _kl_ce(hidden_CD: Tensor, teacher_CD: Tensor, labels_C: Tensor, weight_VD: Tensor) -> Tensor:
    logq_CV = (hidden_CD @ weight_VD.T).float().log_softmax(dim=1)
    with torch.no_grad():
        logp_CV = (teacher_CD @ weight_VD.T).float().log_softmax(dim=1)
    kl = F.kl_div(logq_CV, logp_CV, log_target=True, reduction="sum")
    return 0.9 * kl + 0.1 * F.nll_loss(logq_CV, labels_C, reduction="sum")
