"""The gradient of a row's loss by its logits, as a few numbers a row; both the torch and the Triton passes read them.

Every term of the objective has, by logit v, a gradient of one shape:

    g_v = A q_v - B p_v - E [v = y] + q_v (F_v - Fbar),    Fbar = sum_v q_v F_v
    F_v = R log(q_v / p_v) + J log(q_v / m_v) / 2 - S s_v - H log q_v

with s_v the derivative of min(p, q) by log q over q (1 where q < p). ce: A = E = 1. kl: A = B = 1. reverse_kl: R. js: J, since
d/dq of the Jensen-Shannon divergence is log(q/m)/2. tv: S. lk: A = B = lambda, S = 1 - lambda. nla: S = 1/alpha. cap: H = 1 on
rows whose argmax is the label, since the entropy's derivative by q is -log q - 1. Sums of constants over q fall out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.shard_statistics import Merged, Overlap

# A min-sum of 0 means that p and q do not overlap to the last bit; its logarithm stays finite from here.
SMALLEST_ALPHA = 1e-30


class Coefficient:
    """Columns of a row's coefficients, in the letters of the module docstring."""

    A, B, E, R, J, S, H, FBAR = range(8)
    WIDTH = 8


def lk_mix(alpha_C: Tensor) -> Tensor:
    """lambda = exp(-3 alpha): how much of lk is KL, detached."""
    return torch.exp(-3.0 * alpha_C)


def row_coefficients(
    objective: Objective,
    scale_C: Tensor,
    merged_CM: Tensor | None = None,
    overlap_CO: Tensor | None = None,
    labels_C: Tensor | None = None,
) -> Tensor:
    """(C, Coefficient.WIDTH), all of them times ``scale_C``, the row weights, so that the gradient comes out weighted.

    The other arguments are needed if ``objective.exchanges_twice``; overlap_CO holds sums over the whole vocabulary.
    """
    coefficients = scale_C.new_zeros((scale_C.shape[0], Coefficient.WIDTH))
    coefficients[:, Coefficient.A] = objective.ce + objective.kl
    coefficients[:, Coefficient.B] = objective.kl
    coefficients[:, Coefficient.E] = objective.ce
    if objective.exchanges_twice:
        assert merged_CM is not None
        assert overlap_CO is not None
        assert labels_C is not None
        _add_overlap_terms(coefficients, objective, merged_CM, overlap_CO, labels_C)
    return coefficients * scale_C[:, None]


def _add_overlap_terms(
    coefficients: Tensor, objective: Objective, merged_CM: Tensor, overlap_CO: Tensor, labels_C: Tensor
) -> None:
    alpha_C = overlap_CO[:, Overlap.ALPHA]
    mix_C = lk_mix(alpha_C)
    confident_C = merged_CM[:, Merged.ARGMAX] == labels_C
    pull_C = objective.tv + objective.lk * (1.0 - mix_C) + objective.nla / alpha_C.clamp_min(SMALLEST_ALPHA)
    penalty_C = objective.cap * confident_C.to(alpha_C.dtype)
    coefficients[:, Coefficient.A] += objective.lk * mix_C
    coefficients[:, Coefficient.B] += objective.lk * mix_C
    coefficients[:, Coefficient.R] = objective.reverse_kl
    coefficients[:, Coefficient.J] = objective.js
    coefficients[:, Coefficient.S] = pull_C
    coefficients[:, Coefficient.H] = penalty_C
    coefficients[:, Coefficient.FBAR] = (
        objective.reverse_kl * overlap_CO[:, Overlap.REVERSE_KL]
        + objective.js * overlap_CO[:, Overlap.JS_DRAFTER]
        - pull_C * overlap_CO[:, Overlap.PULL]
        + penalty_C * overlap_CO[:, Overlap.ENTROPY]
    )
