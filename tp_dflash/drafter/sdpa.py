"""Visibility as boolean masks for torch's scaled dot-product attention: the CPU's backend, and decoding's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tp_dflash.blocks import BlockGeometry, visible

_CHUNK_ROWS = 256


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Query rows that are attended together: the key rows that any of them sees (None: all), and who sees which."""

    num_rows: int
    key_K: Tensor | None
    mask_P1RK: Tensor


@dataclass(frozen=True, eq=False)
class SdpaVisibility:
    """Masked attention, chunk by chunk of query rows.

    A chunk takes only the keys that one of its rows sees, so neither the mask nor the scores ever span all rows times
    all keys. Every row sees itself at least, so no softmax is empty, in padding blocks neither.
    """

    chunks: tuple[_Chunk, ...]

    @staticmethod
    def packed(
        geometry: BlockGeometry, *, window: int | None, causal: bool, chunk_rows: int = _CHUNK_ROWS
    ) -> SdpaVisibility:
        """One problem: N block rows over M = T + N rows. Chunk sizes depend on the data's masks: it waits for a GPU."""
        device = geometry.document_M.device
        key_1M = torch.arange(geometry.document_M.shape[0], device=device)[None]
        chunks = []
        for query_R in torch.arange(geometry.anchor_position_N.shape[0], device=device).split(chunk_rows):
            mask_RM = visible(geometry, query_R[:, None], key_1M, window=window, causal=causal)
            key_K = mask_RM.any(dim=0).nonzero().squeeze(-1)
            chunks.append(_Chunk(query_R.shape[0], key_K, mask_RM[None, None, :, key_K]))
        return SdpaVisibility(tuple(chunks))

    @staticmethod
    def batched(geometry: BlockGeometry, num_prompts: int, *, window: int | None, causal: bool) -> SdpaVisibility:
        """P problems alike: prompt p has the p-th equal share of the context rows, and the p-th block."""
        num_cached = geometry.num_context // num_prompts
        prompt_P = torch.arange(num_prompts, device=geometry.document_M.device)
        query_PR = _share(prompt_P, geometry.block_size)
        key_PJ = torch.cat([_share(prompt_P, num_cached), geometry.num_context + query_PR], dim=1)
        mask_PRJ = visible(geometry, query_PR[:, :, None], key_PJ[:, None, :], window=window, causal=causal)
        return SdpaVisibility((_Chunk(geometry.block_size, None, mask_PRJ[:, None]),))

    def __call__(self, query_PHRE: Tensor, key_PGJE: Tensor, value_PGJE: Tensor) -> Tensor:
        rows = query_PHRE.split([chunk.num_rows for chunk in self.chunks], dim=2)
        mixed = [
            F.scaled_dot_product_attention(
                query,
                _taken(key_PGJE, chunk.key_K),
                _taken(value_PGJE, chunk.key_K),
                attn_mask=chunk.mask_P1RK,
                enable_gqa=query_PHRE.shape[1] != key_PGJE.shape[1],
            )
            for query, chunk in zip(rows, self.chunks, strict=True)
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def _share(prompt_P: Tensor, count: int) -> Tensor:
    return prompt_P[:, None] * count + torch.arange(count, device=prompt_P.device)


def _taken(heads_PGJE: Tensor, key_K: Tensor | None) -> Tensor:
    return heads_PGJE if key_K is None else heads_PGJE.index_select(2, key_K)
