"""Where blocks start: which tokens may be anchors and which of them are drawn for a document in an epoch.

In: loss masks and the key (seed, epoch, document id). Out: sorted positions. The draw never sees a rank, a worker or a
loader's state, so any number of ranks and any resume point give the same anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tp_dflash.blocks.pack import Pack

_DOCUMENT_BITS = 40


@dataclass(frozen=True)
class AnchorCaps:
    """At most so many anchors: in a document (None: no cap), then in a pack (= A, the fixed number of blocks).

    spacing: only every so-many-th eligible position of a supervised stretch, from its first on (1: all of them).
    """

    per_pack: int
    per_document: int | None = None
    spacing: int = 1


def eligible_anchors(loss_mask_S: Tensor) -> Tensor:
    """Positions a of one document with m[a] = m[a+1] = 1 and a + 1 < S, ascending, int64 (docs/blocks.md)."""
    return torch.nonzero(loss_mask_S[:-1] & loss_mask_S[1:]).squeeze(-1)


def _on_grid(eligible: np.ndarray, spacing: int) -> np.ndarray:
    """Those of the ascending positions that are whole multiples of ``spacing`` behind the start of their stretch."""
    if spacing == 1 or not len(eligible):
        return eligible
    starts = np.flatnonzero(np.diff(eligible, prepend=eligible[0] - 2) > 1)
    start = np.repeat(eligible[starts], np.diff(starts, append=len(eligible)))
    return eligible[(eligible - start) % spacing == 0]


def anchor_priorities(num_tokens: int, seed: int, epoch: int, document_id: int) -> np.ndarray:
    """One random 64-bit priority a position, (S,) uint64, from a counter generator keyed by what names the draw.

    Philox's raw output is fixed by its definition, so the draw does not change with the version of a library.
    """
    if not (0 <= document_id < 1 << _DOCUMENT_BITS and 0 <= epoch < 1 << (64 - _DOCUMENT_BITS)):
        raise ValueError(
            f"expected document ids below 2^{_DOCUMENT_BITS} and epochs below 2^{64 - _DOCUMENT_BITS}, got document "
            f"{document_id} in epoch {epoch}; number documents from 0"
        )
    key = np.array([seed % (1 << 64), (epoch << _DOCUMENT_BITS) | document_id], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(num_tokens)


def sample_anchors(pack: Pack, caps: AnchorCaps, seed: int) -> Tensor:
    """Draw the pack's anchors without replacement; returns ascending indices into the pack, int64, at most per_pack.

    The lowest priorities stay, first within each document, then within the pack; a tie goes to the earlier document
    and position.
    """
    positions, priorities = [], []
    for document, start in zip(pack.documents, pack.document_starts, strict=False):
        eligible = _on_grid(eligible_anchors(document.loss_mask_S).numpy(), caps.spacing)
        drawn = anchor_priorities(document.num_tokens, seed, pack.epoch, document.document_id)[eligible]
        kept = _lowest(drawn, caps.per_document)
        positions.append(eligible[kept] + start)
        priorities.append(drawn[kept])
    if not positions:
        return torch.empty(0, dtype=torch.int64)
    position = np.concatenate(positions)
    kept = _lowest(np.concatenate(priorities), caps.per_pack)
    return torch.from_numpy(np.sort(position[kept]))


def _lowest(priorities: np.ndarray, count: int | None) -> np.ndarray:
    order = np.argsort(priorities, kind="stable")
    return order if count is None else order[:count]
