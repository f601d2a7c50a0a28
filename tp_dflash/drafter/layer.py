"""One decoder layer of the drafter: attention to context and block, then SwiGLU, each with norm before and residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tp_dflash.config.drafter import LayerType
from tp_dflash.drafter.attention import Attention
from tp_dflash.drafter.gated_mlp import GatedMLP
from tp_dflash.drafter.norm import RMSNorm
from tp_dflash.drafter.plan import AttentionPlan
from tp_dflash.drafter.rotary import Rotary
from tp_dflash.drafter.shape import DrafterShape


class DrafterLayer(nn.Module):
    """Block rows through one layer. Context keys and values are made inside, from the layer's own projections.

    A layer is the unit that FSDP shards, that is recomputed (``checkpointing``) and that is compiled (``compiled``):
    recomputation lies inside the layer's forward, so gathered parameters are there when it runs.
    """

    def __init__(
        self, shape: DrafterShape, layer_type: LayerType, *, checkpointing: bool = False, compiled: bool = False
    ) -> None:
        super().__init__()
        self.layer_type: LayerType = layer_type
        self.checkpointing = checkpointing
        self.compiled = compiled
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape.hidden_size, shape.intermediate_size)

    def forward(self, hidden_PRD: Tensor, context_PCD: Tensor, plan: AttentionPlan) -> Tensor:
        """Training: block rows and context in, block rows out."""
        run = _compiled(DrafterLayer._from_context) if self.compiled else DrafterLayer._from_context
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(run, self, hidden_PRD, context_PCD, plan, use_reentrant=False, preserve_rng_state=False)
        return run(self, hidden_PRD, context_PCD, plan)

    def context_keys_values(self, context_PCD: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Decoding: what this layer keeps of new context rows, (P, C, G, E) each."""
        return self.self_attn.keys_values(context_PCD, rotary)

    def draft(self, hidden_PRD: Tensor, keys_PCGE: Tensor, values_PCGE: Tensor, plan: AttentionPlan) -> Tensor:
        """Decoding: block rows over kept context rows in, block rows out."""
        return self._from_keys_values(hidden_PRD, keys_PCGE, values_PCGE, plan)

    def _from_context(self, hidden_PRD: Tensor, context_PCD: Tensor, plan: AttentionPlan) -> Tensor:
        keys_PCGE, values_PCGE = self.self_attn.keys_values(context_PCD, plan.rotary_of_context())
        return self._from_keys_values(hidden_PRD, keys_PCGE, values_PCGE, plan)

    def _from_keys_values(
        self, hidden_PRD: Tensor, keys_PCGE: Tensor, values_PCGE: Tensor, plan: AttentionPlan
    ) -> Tensor:
        attend = plan.attend[self.layer_type]
        rows_PRD = self.input_layernorm(hidden_PRD)
        hidden_PRD = hidden_PRD + self.self_attn(rows_PRD, keys_PCGE, values_PCGE, plan.block_rotary, attend)
        return hidden_PRD + self.mlp(self.post_attention_layernorm(hidden_PRD))


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # A function of the layer, not a method of each: layers of one type share one compiled graph.
    return torch.compile(function, dynamic=False)
