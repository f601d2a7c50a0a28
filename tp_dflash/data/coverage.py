"""How much of what is supervised a drafter gets to see: the share of tokens that lie in at least one block of an epoch.

In: an epoch's plan and the rules for anchors. Out: counts over a sample of its packs, drawn evenly through the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tp_dflash.blocks import AnchorCaps, BlockLayout
from tp_dflash.blocks.layout import LabelMode
from tp_dflash.data.epoch_plan import EpochPlan
from tp_dflash.data.store import TokenStore


@dataclass(frozen=True)
class Coverage:
    """Sums over the sampled packs. supervised: tokens that may be trained on. labels: those that some block predicts.

    anchors: blocks drawn; eligible: positions that could have been anchors.
    """

    packs: int
    supervised: int
    labels: int
    anchors: int
    eligible: int

    @property
    def share(self) -> float:
        """labels / supervised: 1 means that every supervised token is predicted in this epoch."""
        return self.labels / self.supervised if self.supervised else 0.0


def anchor_coverage(
    plan: EpochPlan,
    store: TokenStore,
    caps: AnchorCaps,
    seed: int,
    block_size: int,
    label_mode: LabelMode = "same_position",
    max_packs: int = 64,
) -> Coverage:
    """Count over at most ``max_packs`` filled packs of the epoch, with the very anchors that training will draw."""
    count = min(max_packs, plan.num_filled_packs)
    pack_ids = np.unique(np.linspace(0, plan.num_filled_packs - 1, count).astype(np.int64))
    supervised = labels = anchors = eligible = 0
    for pack_id in pack_ids:
        layout = BlockLayout.build(plan.pack(store, int(pack_id)), caps, seed, block_size, label_mode)
        supervised += int(layout.pack.loss_mask_T.sum())
        labels += _num_labels(layout)
        anchors += layout.num_blocks
        eligible += sum(int((mask[:-1] & mask[1:]).sum()) for mask in _masks(layout))
    return Coverage(len(pack_ids), supervised, labels, anchors, eligible)


def _masks(layout: BlockLayout) -> list[torch.Tensor]:
    return [document.loss_mask_S for document in layout.pack.documents]


def _num_labels(layout: BlockLayout) -> int:
    shift = 1 if layout.label_mode == "next_token" else 0
    label_AB = layout.anchor_A[:, None] + torch.arange(layout.block_size) + shift
    return int(torch.unique(label_AB.flatten()[layout.valid_N]).numel())
