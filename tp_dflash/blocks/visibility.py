"""The one statement of what a block row may attend to; every attention backend is made from it.

In: a geometry and index tensors (or the scalars that flex_attention traces). Out: bool. There is no other mask in the
project, and no backend attends to more.
"""

from __future__ import annotations

from torch import Tensor

from tp_dflash.blocks.geometry import BlockGeometry


def visible(
    geometry: BlockGeometry, query: Tensor, key: Tensor, *, window: int | None = None, causal: bool = False
) -> Tensor:
    """Whether block row ``query`` (0..N-1) sees key row ``key`` (0..M-1, M = T + N: context first, then block rows).

    A row sees the context of its own document strictly before its anchor, and its own block; nothing of another block.
    window: keys must also lie at positions > query position - window. causal: within the block, no later position.
    Index tensors broadcast against each other.
    """
    query_row = query + geometry.num_context
    key_block = geometry.block_M[key]
    is_context = key_block < 0
    same_document = geometry.document_M[query_row] == geometry.document_M[key]
    before_anchor = geometry.position_M[key] < geometry.anchor_position_N[query]
    own_block = geometry.block_M[query_row] == key_block
    query_position, key_position = geometry.position_M[query_row], geometry.position_M[key]
    if causal:
        own_block = own_block & (key_position <= query_position)
    seen = (is_context & same_document & before_anchor) | own_block
    if window is not None:
        seen = seen & (key_position > query_position - window)
    return seen
