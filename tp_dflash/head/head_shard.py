"""One rank's rows of an lm_head, together with the token ids they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tp_dflash.head.vocab_range import VocabRange


@dataclass(frozen=True, eq=False)
class HeadShard:
    """Rows ``vocab.start..vocab.stop-1`` of an lm_head, and after them ``num_padding`` rows that stand for nothing.

    weight_vD: (vocab.size + num_padding, D), rows contiguous. Padding rows are never read: they enter no softmax, no
    argmax and no gradient. A weight that requires a gradient is a trained head: keep it in fp32 (the master), the loss
    rounds it to the hidden rows' dtype for its products and returns its gradient in the master's own dtype.
    Nothing is checked here, so that a wrong shard on one rank becomes the same error on all ranks inside the loss.
    """

    weight_vD: Tensor
    vocab: VocabRange
    num_padding: int = 0

    @property
    def rows_vD(self) -> Tensor:
        """The weight without its padding rows (a view)."""
        return self.weight_vD[: self.vocab.size]

    @staticmethod
    def cut(weight_VD: Tensor, vocab: VocabRange) -> HeadShard:
        """This range's rows of a whole head (a view; ``.clone()`` the weight to let go of the rest)."""
        if weight_VD.shape[0] != vocab.total:
            raise ValueError(
                f"expected a whole head of {vocab.total} rows, got {tuple(weight_VD.shape)}; pass the rows of one shard "
                "to HeadShard(...) itself"
            )
        return HeadShard(weight_VD[vocab.start : vocab.stop], vocab)
