"""A reduced vocabulary: the target's token ids that a drafter's own head may propose.

In: token ids, or the published tables d2t and t2d. Out: the tables, draft ids and target ids, and which rows of the target's
head a shard of draft ids needs. With the teacher's head restricted to those rows the loss is that of any other vocabulary: p
is the target's distribution over the kept tokens, renormalised, as the trainers of reduced heads define it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.head.vocab_range import VocabRange


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """token_ids_W: kept ids of the target, ascending, int64; row w of the drafter's head is row token_ids_W[w] of the target's."""

    token_ids_W: Tensor
    vocab_size: int

    def __post_init__(self) -> None:
        ids = self.token_ids_W
        if ids.numel() == 0 or bool((ids.diff() <= 0).any()) or int(ids[0]) < 0 or int(ids[-1]) >= self.vocab_size:
            raise ValueError(
                f"expected distinct ascending token ids below {self.vocab_size}, got {ids.numel()} from "
                f"{ids[:1].tolist()} to {ids[-1:].tolist()}; choose them from the target's vocabulary"
            )

    @property
    def size(self) -> int:
        return self.token_ids_W.shape[0]

    @property
    def d2t(self) -> Tensor:
        """For each kept token what must be added to its number to get the target's id, int64 (W,)."""
        return self.token_ids_W - torch.arange(self.size, device=self.token_ids_W.device)

    @property
    def t2d(self) -> Tensor:
        """For each id of the target whether it is kept, bool (V,)."""
        kept = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.token_ids_W.device)
        kept[self.token_ids_W] = True
        return kept

    @staticmethod
    def keep(target_ids: Tensor, vocab_size: int) -> DraftVocabulary:
        """These ids of the target, in any order."""
        return DraftVocabulary(target_ids.unique().long(), vocab_size)

    @staticmethod
    def from_tables(d2t: Tensor, t2d: Tensor) -> DraftVocabulary:
        """From both published tables; ValueError if they do not name the same tokens."""
        if d2t.dim() != 1 or t2d.dim() != 1 or d2t.dtype != torch.int64 or t2d.dtype != torch.bool:
            raise ValueError(
                f"expected d2t as int64 (draft vocabulary) and t2d as bool (vocabulary), got {d2t.dtype} "
                f"{tuple(d2t.shape)} and {t2d.dtype} {tuple(t2d.shape)}; pass both tables as published"
            )
        named, kept = d2t + torch.arange(d2t.shape[0], device=d2t.device), torch.nonzero(t2d).flatten()
        if not torch.equal(named, kept):
            raise ValueError(
                f"expected d2t to name, in ascending order, the {kept.numel()} tokens that t2d keeps, got {named.numel()} ids "
                f"from {named[:1].tolist()} to {named[-1:].tolist()}; d2t holds offsets (target id - draft id), not target ids"
            )
        return DraftVocabulary(kept, t2d.shape[0])

    @staticmethod
    def from_d2t(d2t: Tensor, vocab_size: int) -> DraftVocabulary:
        return DraftVocabulary(d2t.long() + torch.arange(d2t.shape[0]), vocab_size)

    @staticmethod
    def most_frequent(count_V: Tensor, size: int, always: Collection[int] = ()) -> DraftVocabulary:
        """The ``size`` ids seen most often (the lower id wins a tie), the ids in ``always`` among them whatever their count."""
        if not len(set(always)) <= size <= count_V.shape[0]:
            raise ValueError(
                f"expected a vocabulary between the {len(set(always))} ids to keep always and the target's "
                f"{count_V.shape[0]}, got {size}; choose another size"
            )
        ranked = count_V.clone().double()
        ranked[sorted(set(always))] = float("inf")
        order = torch.sort(ranked, descending=True, stable=True).indices
        return DraftVocabulary(order[:size].sort().values, count_V.shape[0])

    def shard(self, num_ranks: int, rank: int) -> VocabRange:
        """The range of draft ids that a rank owns."""
        return VocabRange.split(self.size, num_ranks)[rank]

    def teacher_rows(self, vocab: VocabRange) -> Tensor:
        """Which rows of the target's lm_head a shard of draft ids needs, in its order: read these rows of the file."""
        return self.token_ids_W[vocab.start : vocab.stop]

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft ids as target ids; negative ids (rows without a token) stay as they are."""
        ids = self.token_ids_W.to(draft_ids.device)[draft_ids.clamp_min(0)]
        return torch.where(draft_ids < 0, draft_ids, ids)

    def labels(self, labels_N: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
        """Labels as draft ids, and weights with 0 on rows whose label the drafter cannot say (such a row ends a streak)."""
        device = labels_N.device
        draft_of_V = torch.full((self.vocab_size,), -1, dtype=torch.int64, device=device)
        draft_of_V[self.token_ids_W.to(device)] = torch.arange(self.size, device=device)
        inside_N = (labels_N >= 0) & (labels_N < self.vocab_size)
        wrong = ~inside_N & (weights_N != 0)
        draft_N = torch.where(inside_N, draft_of_V[torch.where(inside_N, labels_N, 0)], -1)
        # A label that no vocabulary has stays wrong (-1 at its weight), so that the loss reports it.
        kept_N = torch.where((draft_N >= 0) | wrong, weights_N, 0.0)
        return draft_N, kept_N
