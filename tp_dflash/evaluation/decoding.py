"""Decoding prompts with a drafter (docs/evaluation.md), and without one for comparison.

In: token ids of prompts. Out: answers and the seconds of each phase. Greedy answers are the target's own, token for token;
sampled ones have its distribution. Randomness belongs to the prompt, so neither batching nor ranks change what is drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tp_dflash.drafter import Drafter
from tp_dflash.evaluation.answer import Answer
from tp_dflash.evaluation.choices import greedy_choices, rejection_choices, sampled_choices
from tp_dflash.evaluation.decoding_batch import DecodingBatch, Noise, prompt_noise, uniform
from tp_dflash.evaluation.draft_session import DraftHead, DraftSession
from tp_dflash.evaluation.draft_tree import check_budget
from tp_dflash.evaluation.forward_cost import ForwardCost
from tp_dflash.evaluation.proposals import Proposal, propose_chain, propose_drawn, propose_tree
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.evaluation.target_session import TargetSession
from tp_dflash.target import Target

Acceptance = Literal["match", "rejection"]


@dataclass(frozen=True)
class DecodingRules:
    """How answers are made. temperature 0: greedy. acceptance says how sampled drafts are judged; trees only match.

    tree_budget: nodes of a draft tree; None drafts a chain. tree_cost: trees stop growing where a node no longer pays.
    """

    max_new_tokens: int
    stop_tokens: Collection[int] = ()
    temperature: float = 0.0
    acceptance: Acceptance = "rejection"
    tree_budget: int | None = None
    tree_cost: ForwardCost | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tree_budget is not None:
            check_budget(self.tree_budget)
            if self.temperature > 0 and self.acceptance == "rejection":
                raise ValueError(
                    "expected acceptance by match for trees (their nodes are not drawn), got rejection; set "
                    'evaluation.acceptance = "match"'
                )

    @property
    def draws_drafts(self) -> bool:
        return self.temperature > 0 and self.acceptance == "rejection"


class Decoder:
    """Answers prompts with a target, alone (``plain``) or with a drafter (``speculative``)."""

    def __init__(
        self,
        target: Target,
        head_VD: Tensor,
        rules: DecodingRules,
        drafter: Drafter | None = None,
        draft_head: DraftHead | None = None,
    ) -> None:
        """head_VD: the whole lm_head, on the target's device; draft_head: that of the drafter, by default the target's."""
        self.target = target
        self.head_VD = head_VD
        self.rules = rules
        self.drafter = drafter
        self.draft_head = DraftHead(head_VD) if draft_head is None else draft_head

    @property
    def num_drafted(self) -> int:
        """K: drafted positions of a block."""
        assert self.drafter is not None, "built without a drafter"
        return self.drafter.shape.block_size - self.drafter.shape.first_predicted

    @torch.inference_mode()
    def plain(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], watch: Stopwatch) -> list[Answer]:
        """Answers one token a target pass. keys: number of each prompt, for its randomness. Phases: prefill, verify."""
        batch = self._begin(prompts, keys, watch, rows=1)
        while batch.active:
            with watch.phase("verify"):
                logits_P1V, _ = batch.session.verify(batch.last_tokens()[:, None])
                chosen_P1 = self._choose(logits_P1V, batch.noise, None).tolist()
                batch.session.keep(torch.zeros(len(batch.active), 1, dtype=torch.int64), batch.ones())
                for answer, chosen in zip(batch.active, chosen_P1, strict=True):
                    answer.add(chosen[0])
                batch.drop_finished()
        return batch.answers

    @torch.inference_mode()
    def speculative(self, prompts: Sequence[Sequence[int]], keys: Sequence[int], watch: Stopwatch) -> list[Answer]:
        """Answers a block a target pass. Phases: prefill, draft, verify, rest."""
        batch = self._begin(prompts, keys, watch, rows=1 + (self.rules.tree_budget or self.num_drafted))
        while batch.active:
            with watch.phase("draft"):
                proposal = self._propose(batch, self._draft(batch))
            with watch.phase("verify"):
                logits_PQV, features_PQF = self._verify(batch, proposal)
                chosen_PQ = self._choose(logits_PQV, batch.noise, proposal).tolist()
            with watch.phase("rest"):
                path_PJ, count_P = batch.accept(proposal.trees, chosen_PQ)
                batch.session.keep(path_PJ, count_P)
            with watch.phase("draft"):
                batch.extend(features_PQF, path_PJ, count_P)
            with watch.phase("rest"):
                batch.drop_finished()
        return batch.answers

    def _begin(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[int], watch: Stopwatch, rows: int
    ) -> DecodingBatch:
        capacity = max(map(len, prompts)) + self.rules.max_new_tokens + 2 * rows
        with watch.phase("prefill"):
            session = TargetSession(self.target, self.head_VD, len(prompts), capacity)
            logits_PV, features_PSF, length_P = session.prefill(prompts)
            answers = [Answer(self.rules.stop_tokens, self.rules.max_new_tokens) for _ in prompts]
            noise = [prompt_noise(self.rules.seed, key) for key in keys]
            drafts = None
            if rows > 1 and self.drafter is not None:
                drafts = DraftSession(self.drafter, self.target, len(prompts))
                drafts.extend(features_PSF, length_P)
            first_P1 = self._choose(logits_PV[:, None], noise, None).tolist()
            for answer, first in zip(answers, first_P1, strict=True):
                answer.add(first[0])
            batch = DecodingBatch(session, drafts, answers, list(answers), noise)
            batch.drop_finished()
        return batch

    def _draft(self, batch: DecodingBatch) -> Tensor:
        """Logits (P, K, v) of the drafted positions behind each active prompt's last token."""
        assert batch.drafts is not None
        return self.draft_head.logits(batch.drafts.draft(batch.last_tokens()))

    def _propose(self, batch: DecodingBatch, logits_PKv: Tensor) -> Proposal:
        rules = self.rules
        if rules.tree_budget is not None:
            return propose_tree(logits_PKv, self.draft_head, rules.temperature, rules.tree_budget, rules.tree_cost)
        if rules.draws_drafts:
            uniform_PK = uniform(batch.noise, logits_PKv.shape[1], logits_PKv.device)
            return propose_drawn(
                logits_PKv, self.draft_head, rules.temperature, uniform_PK, vocab_size=self.head_VD.shape[0]
            )
        return propose_chain(logits_PKv, self.draft_head, rules.temperature)

    def _verify(self, batch: DecodingBatch, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """Target pass over each prompt's last token and its tree; shorter trees are padded with rows that nobody sees."""
        trees, anchor_P = proposal.trees, batch.last_tokens().tolist()
        if self.rules.tree_budget is None:
            return batch.session.verify(
                torch.tensor([[anchor, *tree.tokens] for anchor, tree in zip(anchor_P, trees, strict=True)])
            )
        num_rows = 1 + max(tree.num_nodes for tree in trees)
        tokens_PQ, depth_PQ = torch.zeros(2, len(trees), num_rows, dtype=torch.int64)
        visible_PQQ = torch.eye(num_rows, dtype=torch.bool).repeat(len(trees), 1, 1)
        for row, tree in enumerate(trees):
            used = 1 + tree.num_nodes
            tokens_PQ[row, :used] = torch.tensor([anchor_P[row], *tree.tokens])
            depth_PQ[row, :used] = torch.tensor([0, *tree.depths])
            visible_PQQ[row, :used, :used] = torch.from_numpy(np.ascontiguousarray(tree.visible_QQ))
        return batch.session.verify(tokens_PQ, depth_PQ, visible_PQQ)

    def _choose(self, logits_PQV: Tensor, noise: list[Noise], proposal: Proposal | None) -> Tensor:
        rules = self.rules
        if rules.temperature == 0:
            return greedy_choices(logits_PQV)
        num_rows, device = logits_PQV.shape[1], logits_PQV.device
        if proposal is None or proposal.q_PKV is None:
            return sampled_choices(logits_PQV, rules.temperature, uniform(noise, num_rows, device))
        drafted_PK = torch.tensor([tree.tokens for tree in proposal.trees], device=device)
        return rejection_choices(
            logits_PQV,
            rules.temperature,
            drafted_PK,
            proposal.q_PKV,
            accept_uniform_PK=uniform(noise, num_rows - 1, device),
            choice_uniform_PQ=uniform(noise, num_rows, device),
        )
