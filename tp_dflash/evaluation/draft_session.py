"""A batch of prompts on the drafter's side of decoding: its context cache, and log-probabilities of one block a prompt.

In: context features of kept tokens, then anchors. Out: log q of every drafted position over the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from tp_dflash.drafter import Drafter
from tp_dflash.target import Target


@dataclass(frozen=True, eq=False)
class DraftHead:
    """The lm_head that drafts are read from. token_v: token id of each of its rows; None: rows are token ids."""

    head_vD: Tensor
    token_v: Tensor | None = None

    def logits(self, hidden_PKD: Tensor) -> Tensor:
        """fp32 logits of hidden rows, one for each of the head's rows."""
        # As one matrix: rows cut out of blocks have gaps, and a product of batches copies the head for each prompt on CPUs.
        rows_ND = rearrange(hidden_PKD, "P K D -> (P K) D").to(self.head_vD.dtype)
        return F.linear(rows_ND, self.head_vD).float().unflatten(0, hidden_PKD.shape[:2])

    def tokens(self, row: Tensor) -> Tensor:
        """Token ids of row numbers."""
        return row if self.token_v is None else self.token_v.to(row.device)[row]


class DraftSession:
    """P prompts being decoded; ``extend`` with what the target kept, then ``draft`` the next block of each."""

    def __init__(self, drafter: Drafter, target: Target, num_prompts: int) -> None:
        self.drafter = drafter
        self.target = target
        self.cache = drafter.new_cache(num_prompts, target.device)
        self.mask_embedding_D = target.embed(torch.tensor([drafter.shape.mask_token_id]))[0]

    def extend(self, features_PSF: Tensor, count_P: Tensor) -> None:
        """Append context: the first count_P of S rows belong to each prompt."""
        self.drafter.extend(self.cache, features_PSF, count_P)

    def draft(self, anchor_P: Tensor) -> Tensor:
        """Hidden rows (P, K, D) of the drafted positions of one block behind each prompt's context."""
        hidden_PBD = self.drafter.draft(self.cache, self.target.embed(anchor_P), self.mask_embedding_D)
        return hidden_PBD[:, self.drafter.shape.first_predicted :]

    def select(self, prompts: Tensor) -> None:
        """Keep only these prompts (int64 indices), in this order."""
        self.cache.select(prompts)
