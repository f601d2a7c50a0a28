"""What the drafter proposes for a block: a chain of its best tokens, a drawn chain, or a best-first tree.

In: logits of the drafted positions. Out: one DraftTree a prompt, and for drawn chains the distribution they came from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.evaluation.choices import draw
from tp_dflash.evaluation.draft_session import DraftHead
from tp_dflash.evaluation.draft_tree import DraftTree
from tp_dflash.evaluation.forward_cost import ForwardCost


@dataclass(frozen=True, eq=False)
class Proposal:
    """One tree a prompt. q_PKV: only of drawn chains, the distributions over the target's vocabulary."""

    trees: list[DraftTree]
    q_PKV: Tensor | None = None


def propose_chain(logits_PKv: Tensor, head: DraftHead, temperature: float) -> Proposal:
    """The most probable token of each position."""
    log_q_PK, row_PK = _log_q(logits_PKv, temperature).max(dim=-1)
    return Proposal(_chains(head.tokens(row_PK), log_q_PK))


def propose_drawn(
    logits_PKv: Tensor, head: DraftHead, temperature: float, uniform_PK: Tensor, vocab_size: int
) -> Proposal:
    """A token of each position, drawn from softmax(logits / temperature)."""
    log_q_PKv = _log_q(logits_PKv, temperature)
    q_PKv = log_q_PKv.exp()
    row_PK = draw(q_PKv, uniform_PK)
    log_q_PK = log_q_PKv.gather(2, row_PK[:, :, None]).squeeze(2)
    q_PKV = q_PKv
    if head.token_v is not None:
        q_PKV = q_PKv.new_zeros(*q_PKv.shape[:2], vocab_size)
        q_PKV.index_copy_(2, head.token_v.to(q_PKv.device), q_PKv)
    return Proposal(_chains(head.tokens(row_PK), log_q_PK), q_PKV)


def propose_tree(
    logits_PKv: Tensor, head: DraftHead, temperature: float, budget: int, cost: ForwardCost | None
) -> Proposal:
    """The prefixes with the largest probability products, ``budget`` of them or as many as pay."""
    top = _log_q(logits_PKv, temperature).topk(min(budget, logits_PKv.shape[2]), dim=-1)
    tokens_PKc, log_q_PKc = head.tokens(top.indices).tolist(), top.values.double().tolist()
    return Proposal(
        [DraftTree.best_first(tokens, log_q, budget, cost) for tokens, log_q in zip(tokens_PKc, log_q_PKc, strict=True)]
    )


def _log_q(logits_PKv: Tensor, temperature: float) -> Tensor:
    """fp32 log-probabilities; greedy decoding (temperature 0) drafts from the plain softmax."""
    return torch.log_softmax(logits_PKv.float() / (temperature or 1.0), dim=-1)


def _chains(tokens_PK: Tensor, log_q_PK: Tensor) -> list[DraftTree]:
    return [DraftTree.chain(*each) for each in zip(tokens_PK.tolist(), log_q_PK.tolist(), strict=True)]
