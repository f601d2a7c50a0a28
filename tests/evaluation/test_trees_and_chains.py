"""A tree that holds the chain never accepts less than the chain would have on the same block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.evaluation.models import HintedDecoder, make_drafter, make_prompts, make_target, own_greedy
from tp_dflash.evaluation.decoding import DecodingRules
from tp_dflash.evaluation.decoding_batch import DecodingBatch
from tp_dflash.evaluation.proposals import Proposal, propose_chain
from tp_dflash.evaluation.stopwatch import Stopwatch

NEW_TOKENS = 24


class _Recorder(HintedDecoder):
    """Keeps, for each block of each answer: what the chain would have accepted, and how much of the chain the tree holds."""

    chains: dict[int, list[tuple[int, int]]]

    def _propose(self, batch: DecodingBatch, logits_PKv: Tensor) -> Proposal:
        proposal = super()._propose(batch, logits_PKv)
        chains = propose_chain(logits_PKv, self.draft_head, temperature=0.0).trees
        for answer, tree, chain in zip(batch.active, proposal.trees, chains, strict=True):
            prompt = next(i for i, mine in enumerate(batch.answers) if mine is answer)
            node = held = 0
            while held < chain.num_nodes and (child := tree.children.get((node, chain.tokens[held]))) is not None:
                node, held = child, held + 1
            coming = self.truths[prompt][len(answer.tokens) :]
            hits = [token == true for token, true in zip(chain.tokens, coming, strict=False)]
            accepted = hits.index(False) if False in hits else len(hits)
            self.chains.setdefault(prompt, []).append((accepted, held))
        return proposal


@pytest.mark.parametrize("label_mode", ["same_position", "next_token"])
def test_budgets_one_to_sixteen(tmp_path: Path, label_mode: str) -> None:
    model, target, head_VD = make_target(tmp_path)
    prompts = make_prompts(20)
    # Answers go on beyond what is decoded, so that the chain's last block is judged like the tree's.
    truths = own_greedy(model, prompts, NEW_TOKENS + 8, ())
    drafter = make_drafter(target, label_mode=label_mode)
    better = whole = 0
    for budget in range(1, 17):
        decoder = _Recorder(target, head_VD, DecodingRules(NEW_TOKENS, tree_budget=budget), drafter)
        decoder.truths, decoder.chains = truths, {}
        decoder.ranks = torch.Generator().manual_seed(budget)
        answers = decoder.speculative(prompts, range(len(prompts)), Stopwatch(target.device))
        for prompt, answer in enumerate(answers):
            for streak, (accepted, held) in zip(answer.streaks, decoder.chains[prompt], strict=True):
                assert streak >= min(accepted, held), (budget, prompt)
                better += streak > accepted
                whole += held == decoder.num_drafted
    assert better > 100
    assert whole > 100, "trees should often hold the whole chain"
