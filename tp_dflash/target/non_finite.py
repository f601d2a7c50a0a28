"""Documents whose features are not finite are emptied and reported, so that nobody trains on them.

In: a pack's features as the target wrote them. Out: the same with all rows of such documents set to zero (a NaN times a
weight of zero is still NaN), and one flag a document. Everything stays on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tp_dflash.blocks import BlockLayout, FeatureBatch


def empty_non_finite(layout: BlockLayout, batch: FeatureBatch) -> Tensor:
    """Zero every row of documents with a NaN or infinity in any row, in place; returns finite flags, bool, one a document."""
    device = batch.features_TF.device
    document_T = _moved(layout.pack.document_index_T, device)
    document_U, document_A = (
        document_T[_moved(layout.teacher_row_U, device)],
        document_T[_moved(layout.anchor_A, device)],
    )
    parts = (
        (batch.features_TF, document_T),
        (batch.teacher_hidden_UD, document_U),
        (batch.anchor_embeddings_AD, document_A),
    )
    bad = torch.zeros(len(layout.pack.documents), dtype=torch.int32, device=device)
    for rows, document in parts:
        bad.index_add_(0, document, (~_finite_rows(rows)).int())
    finite = bad == 0
    for rows, document in parts:
        rows.masked_fill_(~finite[document][:, None], 0)
    return finite


def _finite_rows(rows: Tensor) -> Tensor:
    """Minimum and maximum carry any NaN or infinity of the row, without a mask of the whole matrix."""
    if rows.shape[0] == 0:
        return torch.ones(0, dtype=torch.bool, device=rows.device)
    low, high = torch.aminmax(rows, dim=1)
    return torch.isfinite(low) & torch.isfinite(high)


def _moved(index: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for the work already queued there."""
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index
