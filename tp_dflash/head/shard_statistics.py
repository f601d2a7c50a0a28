"""What a rank says about a row from its shard of the logits, and how those sayings become one.

Comes in: per-shard columns of every rank. Goes out: merged columns, the same bits on every rank, because every rank merges
the same numbers in rank order. The columns are those that both the torch and the Triton passes write.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Shard:
    """Columns of one shard's statistics of a row. Argmaxes are global token ids; an empty shard has sums 0."""

    MAX, SUM, TEACHER_MAX, TEACHER_SUM, LABEL_LOGIT, ARGMAX, TEACHER_ARGMAX, AT_TEACHER_ARGMAX = range(8)
    WIDTH = 8


class Merged:
    """Columns of a row's merged statistics. AT_TEACHER_ARGMAX: the drafter's logit of the teacher's argmax."""

    LSE, TEACHER_LSE, LABEL_LOGIT, AT_TEACHER_ARGMAX, ARGMAX, TEACHER_ARGMAX = range(6)
    WIDTH = 6


class Overlap:
    """Columns of the sums that need both LSEs; each rank's sum over its shard, to be added.

    ALPHA: min(p, q). PULL: q s with s = 1 where q < p, 1/2 where equal, 0 above: the derivative of min(p, q) by log q.
    REVERSE_KL: q log(q/p). JS_DRAFTER: q log(q/m) / 2, JS_TEACHER: p log(p/m) / 2, m = (p + q)/2. ENTROPY: -q log q.
    """

    ALPHA, PULL, REVERSE_KL, JS_DRAFTER, JS_TEACHER, ENTROPY = range(6)
    WIDTH = 6


class Measured:
    """Columns of the sums made while the gradient is formed; each rank's sum over its shard, to be added.

    LABEL_RANK and TEACHER_RANK count the token ids of the shard that the drafter prefers to the label, the teacher's argmax.
    """

    KL, ALPHA, ENTROPY, LABEL_RANK, TEACHER_RANK = range(5)
    WIDTH = 5


def merge_shards(gathered_RCS: Tensor) -> Tensor:
    """(ranks, C, Shard.WIDTH) in rank order -> (C, Merged.WIDTH).

    LSE = m + log sum_r s_r exp(m_r - m) with m the largest maximum. Equal maxima: the lowest token id wins.
    """
    label_logit_C = gathered_RCS[..., Shard.LABEL_LOGIT].sum(dim=0)
    lse_C, argmax_C, _ = _merge_side(gathered_RCS, Shard.MAX, Shard.SUM, Shard.ARGMAX)
    teacher_lse_C, teacher_argmax_C, winner_C = _merge_side(
        gathered_RCS, Shard.TEACHER_MAX, Shard.TEACHER_SUM, Shard.TEACHER_ARGMAX
    )
    at_argmax_C = gathered_RCS[..., Shard.AT_TEACHER_ARGMAX].gather(0, winner_C[None]).squeeze(0)
    return torch.stack([lse_C, teacher_lse_C, label_logit_C, at_argmax_C, argmax_C, teacher_argmax_C], dim=1)


def _merge_side(
    gathered_RCS: Tensor, max_column: int, sum_column: int, id_column: int
) -> tuple[Tensor, Tensor, Tensor]:
    max_RC, sum_RC, id_RC = (gathered_RCS[..., column] for column in (max_column, sum_column, id_column))
    max_C = max_RC.amax(dim=0)
    # An empty shard has sum 0; its maximum is the lowest finite number, so the product is 0 and never a NaN.
    lse_C = max_C + torch.log((sum_RC * torch.exp(max_RC - max_C)).sum(dim=0))
    candidate_RC = torch.where((max_RC == max_C) & (sum_RC > 0), id_RC, float("inf"))
    winner_C = candidate_RC.argmin(dim=0)
    return lse_C, candidate_RC.gather(0, winner_C[None]).squeeze(0), winner_C
