"""What one pass over the logits tells about each row: the noun that meters read.

Comes in: nothing but numbers made by the head. Goes out: tensors of this rank's own rows, in the caller's row order, all
detached. It never holds a logit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Per-row facts, each (N,); rows that are not valid hold 0 (ids and ranks: -1).

    valid_N: bool, weight above 0. weight_N: the weight used (dpace: made inside). loss_N: the unweighted blend.
    label_logprob_N: log q(y). kl_N: KL(p || q). alpha_N: sum_v min(p, q), the probability that the draft is accepted.
    entropy_N: of q, nats. label_rank_N, teacher_rank_N: how many token ids the drafter prefers to the label and to the
    teacher's argmax (0: it is the drafter's argmax; among equal logits the lower id comes first), so that top-k accuracy
    is ``rank < k`` for every k. argmax_N, teacher_argmax_N: token ids.
    """

    valid_N: Tensor
    weight_N: Tensor
    loss_N: Tensor
    label_logprob_N: Tensor
    kl_N: Tensor
    alpha_N: Tensor
    entropy_N: Tensor
    label_rank_N: Tensor
    teacher_rank_N: Tensor
    argmax_N: Tensor
    teacher_argmax_N: Tensor

    @property
    def label_prob_N(self) -> Tensor:
        """q(y), 0 on rows that are not valid."""
        return torch.where(self.valid_N, self.label_logprob_N.exp(), 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Every field by name."""
        return {field.name: self.__dict__[field.name] for field in fields(self)}
