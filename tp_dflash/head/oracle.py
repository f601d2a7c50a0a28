"""The head loss written the obvious way: whole vocabulary, one process, autograd. Everything sharded is compared with it.

Comes in: whole heads and every row. Goes out: the same loss, weights and statistics as the sharded loss. It shares no
formula with the sharded path: gradients come from autograd, divergences from log-softmax. Meant for small sizes in fp64;
it materialises every logit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.row_statistics import RowStatistics


@dataclass(frozen=True, eq=False)
class OracleLoss:
    """loss_sum: differentiable weighted sum over all rows. weight_sum: scalar. statistics: per row."""

    loss_sum: Tensor
    weight_sum: Tensor
    statistics: RowStatistics


def dense_head_loss(
    hidden_ND: Tensor,
    teacher_hidden_UD: Tensor,
    teacher_index_N: Tensor,
    labels_N: Tensor,
    weights_N: Tensor,
    *,
    drafter_weight_VD: Tensor,
    teacher_weight_VD: Tensor,
    objective: Objective,
    block_size: int,
) -> OracleLoss:
    """Spec section 5 by definition. Arguments as in ``sharded_head_loss``, with whole heads and all ranks' rows."""
    valid_N = weights_N != 0
    labels_N = torch.where(valid_N, labels_N, 0)
    hidden_ND = torch.where(valid_N[:, None], hidden_ND, 0.0)
    logits_NV = hidden_ND @ drafter_weight_VD.T
    teacher_UV = (teacher_hidden_UD @ teacher_weight_VD.T).detach() / objective.temperature
    logq_NV = logits_NV.log_softmax(dim=1)
    logp_NV = teacher_UV.log_softmax(dim=1)[torch.where(valid_N, teacher_index_N, 0)]
    loss_N = _row_losses(logq_NV, logp_NV, labels_N, objective)
    used_weights_N = weights_N
    label_logprob_N = logq_NV.gather(1, labels_N[:, None]).squeeze(1)
    if objective.weights == "dpace":
        used_weights_N = _dpace_by_definition(
            label_logprob_N.detach().exp(), valid_N, block_size, objective.dpace_floor
        )
    used_weights_N = used_weights_N.to(loss_N.dtype)
    with torch.no_grad():
        statistics = _statistics(logits_NV, logq_NV, logp_NV, loss_N, labels_N, valid_N, used_weights_N)
    return OracleLoss(
        loss_sum=torch.where(valid_N, loss_N * used_weights_N, 0.0).sum(),
        weight_sum=used_weights_N.sum(),
        statistics=statistics,
    )


def _row_losses(logq_NV: Tensor, logp_NV: Tensor, labels_N: Tensor, objective: Objective) -> Tensor:
    q_NV, p_NV = logq_NV.exp(), logp_NV.exp()
    kl_N = (p_NV * (logp_NV - logq_NV)).sum(dim=1)
    alpha_N = torch.minimum(p_NV, q_NV).sum(dim=1)
    logm_NV = torch.logaddexp(logp_NV, logq_NV) - torch.log(logq_NV.new_tensor(2.0))
    js_N = 0.5 * ((p_NV * (logp_NV - logm_NV)) + (q_NV * (logq_NV - logm_NV))).sum(dim=1)
    mix_N = torch.exp(-3.0 * alpha_N.detach())
    entropy_N = -(q_NV * logq_NV).sum(dim=1)
    confident_N = logq_NV.argmax(dim=1) == labels_N
    return (
        objective.ce * -logq_NV.gather(1, labels_N[:, None]).squeeze(1)
        + objective.kl * kl_N
        + objective.reverse_kl * (q_NV * (logq_NV - logp_NV)).sum(dim=1)
        + objective.js * js_N
        + objective.tv * (1.0 - alpha_N)
        + objective.lk * (mix_N * kl_N + (1.0 - mix_N) * (1.0 - alpha_N))
        + objective.nla * -torch.log(alpha_N)
        + objective.cap * torch.where(confident_N, entropy_N, 0.0)
    )


def _dpace_by_definition(label_prob_N: Tensor, valid_N: Tensor, block_size: int, floor: float) -> Tensor:
    """The double loop of the definition, over the valid positions of each block."""
    weights_N = torch.zeros_like(label_prob_N)
    for block in range(0, label_prob_N.shape[0], block_size):
        rows = [row for row in range(block, block + block_size) if valid_N[row]]
        for j, row in enumerate(rows):
            for m in range(j, len(rows)):
                product = 1.0
                for i in range(m + 1):
                    product *= (1.0 - floor) * label_prob_N[rows[i]].item() + floor
                weights_N[row] += product
    return weights_N


def _statistics(
    logits_NV: Tensor,
    logq_NV: Tensor,
    logp_NV: Tensor,
    loss_N: Tensor,
    labels_N: Tensor,
    valid_N: Tensor,
    weights_N: Tensor,
) -> RowStatistics:
    q_NV, p_NV = logq_NV.exp(), logp_NV.exp()
    # A stable descending sort puts the lower id first among equal logits.
    order_NV = logits_NV.sort(dim=1, descending=True, stable=True).indices
    rank_NV = torch.empty_like(order_NV).scatter_(1, order_NV, torch.arange(order_NV.shape[1]).expand_as(order_NV))
    teacher_argmax_N = logp_NV.sort(dim=1, descending=True, stable=True).indices[:, 0]

    def masked(values_N: Tensor, empty: float) -> Tensor:
        return torch.where(valid_N, values_N, empty)

    return RowStatistics(
        valid_N=valid_N,
        weight_N=masked(weights_N, 0.0),
        loss_N=masked(loss_N, 0.0),
        label_logprob_N=masked(logq_NV.gather(1, labels_N[:, None]).squeeze(1), 0.0),
        kl_N=masked((p_NV * (logp_NV - logq_NV)).sum(dim=1), 0.0),
        alpha_N=masked(torch.minimum(p_NV, q_NV).sum(dim=1), 0.0),
        entropy_N=masked(-(q_NV * logq_NV).sum(dim=1), 0.0),
        label_rank_N=masked(rank_NV.gather(1, labels_N[:, None]).squeeze(1), -1),
        teacher_rank_N=masked(rank_NV.gather(1, teacher_argmax_N[:, None]).squeeze(1), -1),
        argmax_N=masked(order_NV[:, 0], -1),
        teacher_argmax_N=masked(teacher_argmax_N, -1),
    )
