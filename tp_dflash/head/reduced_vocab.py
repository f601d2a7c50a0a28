"""A drafter vocabulary that is a part of the target's: which token ids it keeps, and how to move between the two.

Comes in: the published pair of tables, d2t and t2d. Goes out: draft ids and target ids, and which rows of the teacher's head
a shard of draft ids needs. With the teacher's head restricted to those rows, the loss is that of any other vocabulary:
p is the target's distribution over the kept tokens, renormalised, as the trainers of reduced heads define it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.head.vocab_range import VocabRange


@dataclass(frozen=True, eq=False)
class ReducedVocab:
    """d2t_d: int64, one entry a draft id, an offset: target id = draft id + d2t[draft id]. t2d_V: bool, kept target ids."""

    d2t_d: Tensor
    t2d_V: Tensor

    def __post_init__(self) -> None:
        d2t_d, t2d_V = self.d2t_d, self.t2d_V
        if d2t_d.dim() != 1 or t2d_V.dim() != 1 or d2t_d.dtype != torch.int64 or t2d_V.dtype != torch.bool:
            raise ValueError(
                f"expected d2t as int64 (draft vocabulary) and t2d as bool (vocabulary), got {d2t_d.dtype} "
                f"{tuple(d2t_d.shape)} and {t2d_V.dtype} {tuple(t2d_V.shape)}; pass both tables as published"
            )
        target_ids_d = self.target_ids_d
        kept = torch.nonzero(t2d_V).flatten()
        if not torch.equal(target_ids_d.sort().values, kept):
            raise ValueError(
                f"d2t names {target_ids_d.unique().numel()} of {d2t_d.shape[0]} draft ids' target tokens, t2d keeps "
                f"{kept.numel()}, and they are not the same tokens; d2t holds offsets (target id - draft id), not target ids"
            )

    @staticmethod
    def keep(target_ids: Tensor, vocabulary: int) -> ReducedVocab:
        """The tables that keep these target ids, in ascending order, of a vocabulary of so many."""
        kept_d = target_ids.unique().long()
        t2d_V = torch.zeros(vocabulary, dtype=torch.bool, device=kept_d.device)
        t2d_V[kept_d] = True
        return ReducedVocab(kept_d - torch.arange(kept_d.shape[0], device=kept_d.device), t2d_V)

    @property
    def size(self) -> int:
        """Number of draft ids."""
        return self.d2t_d.shape[0]

    @property
    def target_ids_d(self) -> Tensor:
        """The target id of each draft id."""
        return self.d2t_d + torch.arange(self.size, device=self.d2t_d.device)

    def shard(self, num_ranks: int, rank: int) -> VocabRange:
        """The range of draft ids that a rank owns."""
        return VocabRange.split(self.size, num_ranks)[rank]

    def teacher_rows(self, vocab: VocabRange) -> Tensor:
        """Which rows of the target's lm_head a shard of draft ids needs, in its order: read these rows of the file."""
        return self.target_ids_d[vocab.start : vocab.stop]

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft ids as target ids; negative ids (rows without a token) stay as they are."""
        ids = self.target_ids_d.to(draft_ids.device)[draft_ids.clamp_min(0)]
        return torch.where(draft_ids < 0, draft_ids, ids)

    def labels(self, labels_N: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
        """Labels as draft ids, and weights with 0 on rows whose label the drafter cannot say (such a row ends a streak)."""
        device = labels_N.device
        draft_of_V = torch.full(self.t2d_V.shape, -1, dtype=torch.int64, device=device)
        draft_of_V[self.target_ids_d.to(device)] = torch.arange(self.size, device=device)
        inside_N = (labels_N >= 0) & (labels_N < self.t2d_V.shape[0])
        wrong = ~inside_N & (weights_N != 0)
        draft_N = torch.where(inside_N, draft_of_V[torch.where(inside_N, labels_N, 0)], -1)
        # A label that no vocabulary has stays wrong (-1 at its weight), so that the loss reports it.
        kept_N = torch.where((draft_N >= 0) | wrong, weights_N, 0.0)
        return draft_N, kept_N
