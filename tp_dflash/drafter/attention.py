"""Attention of block rows to context and block: queries from the block only, keys and values from both."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from tp_dflash.drafter.norm import RMSNorm
from tp_dflash.drafter.plan import Attend
from tp_dflash.drafter.rotary import Rotary
from tp_dflash.drafter.shape import DrafterShape


class Attention(nn.Module):
    """Grouped-query attention with a norm on every query and key head before the rotary turn (docs/blocks.md).

    Tensors: rows (P, R, D); heads (P, R, H or G, E). P counts independent problems: 1 packed micro-step, or prompts.
    """

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_size, bias=False)
        self.o_proj = nn.Linear(shape.query_size, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def keys_values(self, rows_PRD: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys (normed and turned) and values of context or block rows: the same projections serve both."""
        keys_PRGE = rotary.rotate(self.k_norm(self._heads(self.k_proj(rows_PRD))))
        return keys_PRGE, self._heads(self.v_proj(rows_PRD))

    def forward(
        self,
        rows_PRD: Tensor,
        context_keys_PCGE: Tensor,
        context_values_PCGE: Tensor,
        rotary: Rotary,
        attend: Attend,
    ) -> Tensor:
        """Block rows in, (P, R, D) out; ``attend`` decides what each row sees of context then block."""
        query_PRHE = rotary.rotate(self.q_norm(self._heads(self.q_proj(rows_PRD))))
        keys_PRGE, values_PRGE = self.keys_values(rows_PRD, rotary)
        keys_PJGE = torch.cat([context_keys_PCGE, keys_PRGE], dim=1)
        values_PJGE = torch.cat([context_values_PCGE, values_PRGE], dim=1)
        # Heads move in front as views, so what is kept for the backward pass stays one contiguous tensor each.
        mixed_PHRE = attend(query_PRHE.transpose(1, 2), keys_PJGE.transpose(1, 2), values_PJGE.transpose(1, 2))
        return self.o_proj(rearrange(mixed_PHRE, "P H R E -> P R (H E)"))

    def _heads(self, rows: Tensor) -> Tensor:
        return rearrange(rows, "P R (X E) -> P R X E", E=self.head_dim)
