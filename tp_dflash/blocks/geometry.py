"""Where every row of an attention call stands: the numbers that visibility and rotary positions are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch import Tensor

_PADDING_CONTEXT = -1
_PADDING_ANCHOR = -2


@dataclass(frozen=True, eq=False)
class BlockGeometry:
    """Rows of one attention call, M = T + N: T context rows first, then N = A x B block rows.

    document_M: document of the row; padding context -1 and padding blocks -2, so that they match nothing.
    block_M: -1 for context, else 0..A-1. position_M: position inside the document (rotary position).
    anchor_position_N: position of the row's anchor inside the document. All int64 on one device.
    """

    num_context: int
    block_size: int
    document_M: Tensor
    block_M: Tensor
    position_M: Tensor
    anchor_position_N: Tensor

    @property
    def num_blocks(self) -> int:
        return self.anchor_position_N.shape[0] // self.block_size

    @staticmethod
    def build(
        context_document_T: Tensor,
        context_position_T: Tensor,
        anchor_document_A: Tensor,
        anchor_position_A: Tensor,
        block_size: int,
        num_context: int | None = None,
        num_blocks: int | None = None,
    ) -> BlockGeometry:
        """Geometry of real context and anchors, padded to ``num_context`` rows and ``num_blocks`` blocks if given."""
        num_context = context_document_T.shape[0] if num_context is None else num_context
        num_blocks = anchor_document_A.shape[0] if num_blocks is None else num_blocks
        document_T = _padded(context_document_T, num_context, _PADDING_CONTEXT, "context rows", "data.token_budget")
        position_T = _padded(context_position_T, num_context, 0, "context rows", "data.token_budget")
        document_A = _padded(anchor_document_A, num_blocks, _PADDING_ANCHOR, "anchors", "anchors.per_pack")
        anchor_A = _padded(anchor_position_A, num_blocks, 0, "anchors", "anchors.per_pack")
        offset_B = torch.arange(block_size, device=anchor_A.device)
        block_A = torch.arange(num_blocks, device=anchor_A.device)
        return BlockGeometry(
            num_context=num_context,
            block_size=block_size,
            document_M=torch.cat([document_T, repeat(document_A, "A -> (A B)", B=block_size)]),
            block_M=torch.cat([torch.full_like(position_T, -1), repeat(block_A, "A -> (A B)", B=block_size)]),
            position_M=torch.cat([position_T, rearrange(anchor_A[:, None] + offset_B, "A B -> (A B)")]),
            anchor_position_N=repeat(anchor_A, "A -> (A B)", B=block_size),
        )

    def to(self, device: torch.device) -> BlockGeometry:
        return BlockGeometry(
            self.num_context,
            self.block_size,
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (self.document_M, self.block_M, self.position_M, self.anchor_position_N)
            ),
        )


def _padded(values: Tensor, size: int, fill: int, what: str, setting: str) -> Tensor:
    missing = size - values.shape[0]
    if missing < 0:
        raise ValueError(f"expected at most {size} {what}, got {values.shape[0]}; raise {setting}")
    return torch.cat([values, values.new_full((missing,), fill)])
