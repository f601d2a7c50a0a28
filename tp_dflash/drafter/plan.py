"""What one forward pass knows before its first layer: rotary positions, and for each kind of layer who sees whom.

In: a geometry (a packed micro-step) or the lengths of prompts' caches (decoding). Out: an AttentionPlan that all layers
share. Both kinds of call ask the one predicate ``tp_dflash.blocks.visible``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from tp_dflash.blocks import BlockGeometry
from tp_dflash.config.drafter import LayerType
from tp_dflash.drafter.flex import FlexVisibility
from tp_dflash.drafter.rotary import Rotary
from tp_dflash.drafter.sdpa import SdpaVisibility
from tp_dflash.drafter.shape import DrafterShape

Backend = Literal["auto", "sdpa", "flex"]


class Attend(Protocol):
    """Attention of queries (P, H, R, E) to keys and values (P, G, J, E) under a visibility: (P, H, R, E)."""

    def __call__(self, query_PHRE: Tensor, key_PGJE: Tensor, value_PGJE: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """Positions of context rows (None in decoding: cached keys are turned already) and block rows; ``attend`` by kind."""

    context_rotary: Rotary | None
    block_rotary: Rotary
    attend: dict[LayerType, Attend]

    def rotary_of_context(self) -> Rotary:
        if self.context_rotary is None:
            raise ValueError("expected a plan of a packed micro-step, got one of decoding; use DrafterLayer.draft")
        return self.context_rotary

    @staticmethod
    def packed(shape: DrafterShape, geometry: BlockGeometry, backend: Backend) -> AttentionPlan:
        """Plan of one micro-step: all context rows, then all block rows, as one problem (P = 1)."""
        if backend == "auto":
            backend = "flex" if geometry.position_M.device.type == "cuda" else "sdpa"
        visibility = FlexVisibility if backend == "flex" else SdpaVisibility.packed
        context, block = geometry.position_M[None].split(
            [geometry.num_context, geometry.anchor_position_N.shape[0]], dim=1
        )
        return AttentionPlan(
            context_rotary=Rotary(context, shape.rope_theta),
            block_rotary=Rotary(block, shape.rope_theta),
            attend=_by_layer_type(shape, partial(visibility, geometry)),
        )

    @staticmethod
    def cached(shape: DrafterShape, length_P: Tensor, num_cached: int, device: torch.device) -> AttentionPlan:
        """Plan of drafting one block a prompt, whose anchor follows the prompt's first length_P of num_cached rows."""
        num_prompts = length_P.shape[0]
        length_P = length_P.to(device)
        prompt_P1 = torch.arange(num_prompts, device=device)[:, None]
        row_C = torch.arange(num_cached, device=device)
        document_PC = torch.where(row_C < length_P[:, None], prompt_P1, -1)
        geometry = BlockGeometry.build(
            document_PC.flatten(), row_C.repeat(num_prompts), prompt_P1[:, 0], length_P, shape.block_size
        )
        block_PB = geometry.position_M[geometry.num_context :].view(num_prompts, shape.block_size)
        return AttentionPlan(
            context_rotary=None,
            block_rotary=Rotary(block_PB, shape.rope_theta),
            attend=_by_layer_type(shape, partial(SdpaVisibility.batched, geometry, num_prompts)),
        )


def _by_layer_type(shape: DrafterShape, visibility: Callable[..., Attend]) -> dict[LayerType, Attend]:
    kinds: dict[LayerType, Attend] = {}
    if "full_attention" in shape.layer_types:
        kinds["full_attention"] = visibility(window=None, causal=False)
    if "sliding_attention" in shape.layer_types:
        kinds["sliding_attention"] = visibility(window=shape.sliding_window, causal=shape.sliding_causal)
    return kinds
