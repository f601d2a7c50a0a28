"""Which layers of a target may be tapped: one rule for those who choose the ids and those who tap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def check_layer_ids(layer_ids: Sequence[int], num_target_layers: int) -> None:
    """ValueError unless ids (of layer outputs, from 0) ascend within 0..L-2.

    The last layer's output means different things in different engines (docs/blocks.md).
    """
    ids = list(layer_ids)
    if not ids or any(low >= high for low, high in itertools.pairwise(ids)):
        raise ValueError(
            f"expected distinct layer ids in ascending order, got {ids} for a target of {num_target_layers} layers; set "
            "drafter.target_layer_ids, or fewer drafter.num_layers"
        )
    if ids[0] < 0 or ids[-1] > num_target_layers - 2:
        raise ValueError(
            f"expected layer ids within 0..{num_target_layers - 2} for a target of {num_target_layers} layers, got {ids}; "
            "change drafter.target_layer_ids"
        )
