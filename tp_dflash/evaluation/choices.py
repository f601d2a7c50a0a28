"""What the target says after every verified row: greedily, sampled, or by rejection sampling.

In: the target's logits, and for rejection sampling what the drafter drew and from which distribution. Out: one token a row.
A drafted row is accepted exactly while it equals its parent's choice, whichever rule made the choice; so one walk serves
all rules, and the first choice that was not drafted is the bonus token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def greedy_choices(logits_PQV: Tensor) -> Tensor:
    """The most probable token after each row, (P, Q)."""
    return logits_PQV.argmax(dim=-1)


def sampled_choices(logits_PQV: Tensor, temperature: float, uniform_PQ: Tensor) -> Tensor:
    """A token of softmax(logits / temperature) after each row, (P, Q).

    Rows whose drafted continuation happens to equal the draw are accepted (token match), and each kept token is a draw from
    the target's own distribution given what is before it.
    """
    return draw(probabilities(logits_PQV, temperature), uniform_PQ)


def rejection_choices(
    logits_PQV: Tensor,
    temperature: float,
    drafted_PK: Tensor,
    q_PKV: Tensor,
    accept_uniform_PK: Tensor,
    choice_uniform_PQ: Tensor,
) -> Tensor:
    """Tokens after each row of a chain (Q = K + 1) by rejection sampling; the output has the target's distribution.

    drafted_PK was drawn from q_PKV. After row k it is taken with probability min(1, p/q); otherwise the choice is drawn
    from max(0, p - q), normalised; after the last row it is drawn from p (Leviathan et al. 2023, arXiv 2211.17192).
    """
    p_PQV = probabilities(logits_PQV, temperature)
    p_PKV = p_PQV[:, :-1]
    p_PK = p_PKV.gather(2, drafted_PK[:, :, None]).squeeze(2)
    q_PK = q_PKV.gather(2, drafted_PK[:, :, None]).squeeze(2)
    accepted_PK = accept_uniform_PK * q_PK < p_PK
    rest_PKV = (p_PKV - q_PKV).clamp_(min=0)
    # p = q up to rounding leaves nothing; such a row is accepted with certainty but for rounding, and p serves as well.
    rest_PKV = torch.where(rest_PKV.sum(dim=-1, keepdim=True) > 0, rest_PKV, p_PKV)
    other_PQ = draw(torch.cat([rest_PKV, p_PQV[:, -1:]], dim=1), choice_uniform_PQ)
    return torch.cat([torch.where(accepted_PK, drafted_PK, other_PQ[:, :-1]), other_PQ[:, -1:]], dim=1)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature), fp32."""
    return torch.softmax(logits.float() / temperature, dim=-1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """One index of the last axis, with probability proportional to its weight, from a uniform number in [0, 1) each.

    Sums are fp64: in fp32 a vocabulary's tail would round away. An index of weight 0 is never drawn.
    """
    cumulative = weights.double().cumsum(dim=-1)
    point = uniform.double()[..., None] * cumulative[..., -1:]
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(dim=-1)
    return torch.searchsorted(cumulative, point, right=True).squeeze(-1).minimum(last)
