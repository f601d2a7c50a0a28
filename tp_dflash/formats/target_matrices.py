"""The target's embedding table and lm_head as the speculators layout carries them along."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.config.target import TargetConfig
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import TargetFacts, read_embedding_rows, read_head_rows

_CHUNK_ROWS = 8192


@dataclass(frozen=True, eq=False)
class TargetMatrices:
    """embeddings_VD: as the target's embedding module gives them. head_WD: all V rows, or those of ``vocabulary``."""

    embeddings_VD: Tensor
    head_WD: Tensor
    vocabulary: DraftVocabulary | None = None

    def __post_init__(self) -> None:
        num_rows = self.embeddings_VD.shape[0] if self.vocabulary is None else self.vocabulary.size
        if self.head_WD.shape != (num_rows, self.embeddings_VD.shape[1]):
            raise ValueError(
                f"expected an lm_head of {(num_rows, self.embeddings_VD.shape[1])}, got {tuple(self.head_WD.shape)}; take head "
                "and vocabulary of one target"
            )

    @staticmethod
    def read(
        config: TargetConfig, facts: TargetFacts, dtype: torch.dtype, vocabulary: DraftVocabulary | None = None
    ) -> TargetMatrices:
        """Read both from the target's files, in the drafter's dtype; the model itself is not loaded."""
        if vocabulary is not None and vocabulary.vocab_size != facts.vocab_size:
            raise ValueError(
                f"expected a vocabulary chosen from {facts.vocab_size} ids, got one from {vocabulary.vocab_size}; choose it "
                "again for this target"
            )
        embeddings, head = [], []
        for start in range(0, facts.vocab_size, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, facts.vocab_size)
            embeddings.append(read_embedding_rows(config, facts, range(start, stop)).to(dtype))
            head.append(read_head_rows(config, facts, start, stop).to(dtype))
        head_VD = torch.cat(head)
        head_WD = head_VD if vocabulary is None else head_VD[vocabulary.token_ids_W]
        return TargetMatrices(torch.cat(embeddings), head_WD, vocabulary)
