"""Visibility as a block-sparse mask for flex_attention: the GPU's backend.

Shapes are fixed for a run, so mask and attention are each compiled once; nothing here waits for the device. On a CPU the
same code runs uncompiled (forward only): slow and dense, for comparing the backends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tp_dflash.blocks import BlockGeometry, visible


class FlexVisibility:
    """Attention of the N block rows over M = T + N rows under ``visible``; blocks of keys that nobody sees are skipped."""

    def __init__(self, geometry: BlockGeometry, *, window: int | None, causal: bool) -> None:
        def mask(problem: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible(geometry, query, key, window=window, causal=causal)

        device = geometry.document_M.device
        num_queries, num_keys = geometry.anchor_position_N.shape[0], geometry.document_M.shape[0]
        self.mask: BlockMask = _ready(create_block_mask, device)(mask, None, None, num_queries, num_keys, device)

    def __call__(self, query_PHRE: Tensor, key_PGJE: Tensor, value_PGJE: Tensor) -> Tensor:
        grouped = query_PHRE.shape[1] != key_PGJE.shape[1]
        attend = _ready(flex_attention, query_PHRE.device)
        return attend(query_PHRE, key_PGJE, value_PGJE, block_mask=self.mask, enable_gqa=grouped)


def _ready(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    return _compiled(function) if device.type == "cuda" else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)
