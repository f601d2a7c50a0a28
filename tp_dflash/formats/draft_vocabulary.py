"""A reduced vocabulary: the target's token ids that a drafter's own head may propose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor


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
        return self.token_ids_W - torch.arange(self.size)

    @property
    def t2d(self) -> Tensor:
        """For each id of the target whether it is kept, bool (V,)."""
        kept = torch.zeros(self.vocab_size, dtype=torch.bool)
        kept[self.token_ids_W] = True
        return kept

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
