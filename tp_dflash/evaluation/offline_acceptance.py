"""Acceptance on known text, without decoding: what chains and trees would have accepted of answers that the target wrote.

In: documents with loss masks. Out: for the chain and for each tree budget one tally of the blocks that decoding would have
drafted. For text that is the target's own greedy output this is the acceptance of decoding itself; for other text it says
how well the drafter knows that text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.blocks import AnchorCaps, BlockGeometry, BlockLayout, Document, FeatureBatch, Pack, eligible_anchors
from tp_dflash.drafter import Drafter
from tp_dflash.evaluation.draft_session import DraftHead
from tp_dflash.evaluation.draft_tree import check_budget
from tp_dflash.evaluation.set_sums import all_reduced
from tp_dflash.evaluation.streaks import StreakTally, leading_runs, renewal_streaks
from tp_dflash.evaluation.tree_acceptance import tree_acceptance
from tp_dflash.target import Target

CHAIN = 0


@dataclass(frozen=True)
class OfflineAcceptance:
    """tallies: blocks by streak for each tree budget, ``CHAIN`` (0) for the chain of best tokens."""

    tallies: Mapping[int, StreakTally]

    def lengths(self) -> dict[str, float]:
        """Acceptance length of the chain (``chain``) and of each budget (``tree_16``)."""
        names = {budget: "chain" if budget == CHAIN else f"tree_{budget}" for budget in self.tallies}
        return {names[budget]: tally.acceptance_length for budget, tally in self.tallies.items()}


def offline_acceptance(
    drafter: Drafter,
    target: Target,
    head_VD: Tensor,
    documents: Sequence[Document],
    budgets: Sequence[int] = (),
    *,
    group: ProcessGroup | None = None,
    rows_per_forward: int = 512,
) -> OfflineAcceptance:
    """Exact acceptance of the chain and of best-first trees of the given budgets on these documents.

    Every supervised position is drafted from once; then each supervised stretch is walked as decoding would, from an
    anchor to the first token that was not accepted. A block that reaches the end of its stretch counts what it commits,
    as in decoding. drafter and target are whole on this rank; group: document i belongs to rank i mod size.
    """
    for budget in budgets:
        check_budget(budget)
    rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    num_drafted = drafter.shape.block_size - drafter.shape.first_predicted
    tallies = {budget: StreakTally.empty(num_drafted) for budget in (CHAIN, *budgets)}
    with torch.inference_mode(), _masked_attention(drafter):
        for document in documents[rank::size]:
            for budget, streak_S in _streaks(drafter, target, head_VD, document, budgets, rows_per_forward).items():
                tallies[budget] += StreakTally.of(_walked(document.loss_mask_S, streak_S), num_drafted)
    counts = [count for tally in tallies.values() for count in tally.blocks_by_streak]
    sums = iter(all_reduced(counts, group))
    return OfflineAcceptance(
        {budget: StreakTally(tuple(round(next(sums)) for _ in range(num_drafted + 1))) for budget in tallies}
    )


def _walked(loss_mask_S: Tensor, streak_S: Tensor) -> list[int]:
    """Streaks of the blocks that are met when every supervised stretch is decoded from its first token."""
    streaks: list[int] = []
    edge = torch.diff(
        loss_mask_S.int(), prepend=torch.zeros(1, dtype=torch.int32), append=torch.zeros(1, dtype=torch.int32)
    )
    starts, stops = torch.nonzero(edge == 1).squeeze(1).tolist(), torch.nonzero(edge == -1).squeeze(1).tolist()
    for start, stop in zip(starts, stops, strict=True):
        # The stretch's last token is committed by the block before it; of that block it counts as the bonus token.
        last_S = torch.arange(stop - 2, stop - 2 - len(streak_S), -1).clamp(min=0)
        streaks += renewal_streaks(torch.minimum(streak_S, last_S), start, stop - 1)
    return streaks


def _streaks(
    drafter: Drafter, target: Target, head_VD: Tensor, document: Document, budgets: Sequence[int], rows_per_forward: int
) -> dict[int, Tensor]:
    """For each budget, the streak (S,) of the block anchored at each position; 0 where none is."""
    streaks = {budget: torch.zeros(document.num_tokens, dtype=torch.int64) for budget in (CHAIN, *budgets)}
    if not eligible_anchors(document.loss_mask_S).numel():
        return streaks
    shape = drafter.shape
    layout = BlockLayout.build(
        Pack(0, 0, (document,)), AnchorCaps(document.num_tokens), 0, shape.block_size, shape.label_mode
    )
    features = target.features(layout)
    mask_D = target.embed(torch.tensor([shape.mask_token_id]))[0]
    blocks = torch.arange(layout.num_blocks)
    for block_A in blocks.split(max(1, rows_per_forward // shape.block_size)):
        log_q_AKV = _log_q(drafter, features, mask_D, layout, block_A, head_VD)
        label_AK, valid_AK = (
            rows.unflatten(0, (-1, shape.block_size))[block_A, shape.first_predicted :].to(log_q_AKV.device)
            for rows in (layout.labels_N, layout.valid_N)
        )
        at = layout.anchor_position_A[block_A]
        for budget, streak_S in streaks.items():
            streak_S[at] = _accepted(log_q_AKV, label_AK, valid_AK, budget).cpu()
    return streaks


def _accepted(log_q_AKV: Tensor, label_AK: Tensor, valid_AK: Tensor, budget: int) -> Tensor:
    if budget == CHAIN:
        return leading_runs(log_q_AKV.argmax(dim=2) == label_AK, valid_AK)
    top_AKc = log_q_AKV.topk(min(budget, log_q_AKV.shape[2]), dim=2).values
    label_log_q_AK = log_q_AKV.gather(2, label_AK[:, :, None]).squeeze(2)
    return tree_acceptance(top_AKc, label_log_q_AK, valid_AK, budget)


def _log_q(
    drafter: Drafter, features: FeatureBatch, mask_D: Tensor, layout: BlockLayout, block_A: Tensor, head_VD: Tensor
) -> Tensor:
    """fp32 log-probabilities (A, K, V) of the drafted positions of some blocks, from the network's training forward."""
    num_tokens, shape = layout.pack.num_tokens, drafter.shape
    geometry = BlockGeometry.build(
        torch.zeros(num_tokens, dtype=torch.int64),
        torch.arange(num_tokens),
        torch.zeros_like(block_A),
        layout.anchor_position_A[block_A],
        shape.block_size,
    ).to(features.features_TF.device)
    anchors_AD = features.anchor_embeddings_AD[block_A.to(mask_D.device)]
    hidden_ND = drafter(features.features_TF, anchors_AD, mask_D, geometry)
    hidden_AKD = hidden_ND.unflatten(0, (-1, shape.block_size))[:, shape.first_predicted :]
    return torch.log_softmax(DraftHead(head_VD).logits(hidden_AKD), dim=-1)


@contextmanager
def _masked_attention(drafter: Drafter) -> Iterator[None]:
    """Documents differ in length: a backend that is compiled for each shape would compile for each of them."""
    backend, was_training = drafter.attention, drafter.training
    drafter.attention = "sdpa"
    drafter.eval()
    try:
        yield
    finally:
        drafter.attention = backend
        drafter.train(was_training)
