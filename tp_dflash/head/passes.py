"""The elementwise passes over a chunk's logits, as a contract that two implementations keep: plain torch and Triton.

Comes in: a shard's drafter logits (C, v), the projected teacher rows (S, v) and which of them each row uses. Goes out:
statistics of a shard, and the gradient of the logits. A pass never exchanges anything and never forms a matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tp_dflash.head.vocab_range import VocabRange


@dataclass(frozen=True, eq=False)
class ChunkLogits:
    """One shard's logits of a chunk.

    drafter_Cv: (C, v). teacher_Sv: projected teacher rows, not yet divided by the temperature. slot_C: the teacher row of
    each drafter row. labels_C: int64 token ids, -1 on rows of weight 0. vocab: this shard's range. inverse_temperature:
    what teacher logits are multiplied by. In fp32 (or fp64 on the oracle path; bf16 in the fast mode).
    """

    drafter_Cv: Tensor
    teacher_Sv: Tensor
    slot_C: Tensor
    labels_C: Tensor
    vocab: VocabRange
    inverse_temperature: float


class Passes(Protocol):
    """What the chunk loop asks for; results are fp32, or fp64 where the logits are."""

    def statistics(self, logits: ChunkLogits) -> Tensor:
        """(C, Shard.WIDTH): what this shard knows of each row."""

    def merge(self, gathered_RCS: Tensor) -> Tensor:
        """(ranks, C, Shard.WIDTH) in rank order -> (C, Merged.WIDTH)."""

    def overlaps(self, logits: ChunkLogits, merged_CM: Tensor) -> Tensor:
        """(C, Overlap.WIDTH): this shard's part of the sums that need both LSEs."""

    def gradient(self, logits: ChunkLogits, merged_CM: Tensor, coefficients_CK: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradient of the logits (C, v), and (C, Measured.WIDTH).

        The gradient may take the place of ``drafter_Cv``, which is lost. Without coefficients only the sums are made.
        """
