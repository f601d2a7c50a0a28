"""Visibility as a block-sparse mask for flex_attention: the GPU's backend.

Shapes are fixed for a run, so attention is compiled once; nothing here waits for the device. On a CPU the same code runs
uncompiled (forward only): slow and dense, for comparing the backends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from tp_dflash.blocks import BlockGeometry, visible
from tp_dflash.drafter.block_table import TILE, tiles
from tp_dflash.drafter.compiled import compiled_on_gpu


class FlexVisibility:
    """Attention of the N block rows over M = T + N rows under ``visible``; blocks of keys that nobody sees are skipped."""

    def __init__(self, geometry: BlockGeometry, *, window: int | None, causal: bool) -> None:
        def mask(problem: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible(geometry, query, key, window=window, causal=causal)

        some_QJ, every_QJ = tiles(geometry, window=window, causal=causal)
        self.mask = BlockMask.from_kv_blocks(
            *_listed(some_QJ & ~every_QJ),
            *_listed(every_QJ),
            BLOCK_SIZE=TILE,
            mask_mod=mask,
            seq_lengths=(geometry.anchor_position_N.shape[0], geometry.document_M.shape[0]),
        )

    def __call__(self, query_PHRE: Tensor, key_PGJE: Tensor, value_PGJE: Tensor) -> Tensor:
        grouped = query_PHRE.shape[1] != key_PGJE.shape[1]
        attend = compiled_on_gpu(flex_attention, query_PHRE.device, dynamic=False)
        return attend(query_PHRE, key_PGJE, value_PGJE, block_mask=self.mask, enable_gqa=grouped)


def _listed(table_QJ: Tensor) -> tuple[Tensor, Tensor]:
    """A table of tiles as flex_attention reads it: how many key tiles of each query tile, and their numbers in front."""
    count_Q = table_QJ.sum(dim=1, dtype=torch.int32)
    number_QJ = torch.argsort(table_QJ.to(torch.int8), dim=1, descending=True, stable=True).to(torch.int32)
    return count_Q[None, None], number_QJ[None, None]
