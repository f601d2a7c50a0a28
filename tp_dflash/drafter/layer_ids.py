"""Which layers of the target are tapped: plain arithmetic on layer numbers, no model."""

from __future__ import annotations

from collections.abc import Sequence

from tp_dflash.blocks.layer_ids import check_layer_ids


def resolve_layer_ids(
    layer_ids: Sequence[int] | None, num_target_layers: int, num_drafter_layers: int
) -> tuple[int, ...]:
    """Ids of the tapped layers (outputs, counted from 0), given or by the default rule, checked against the target.

    Default: one tap a drafter layer, round(1 + i * (L - 4) / (K - 1)), and L // 2 for a single one (docs/blocks.md).
    ValueError if an id is outside 0..L-2 (the last layer's output means different things in different engines), or if
    ids repeat or descend.
    """
    ids = default_layer_ids(num_target_layers, num_drafter_layers) if layer_ids is None else tuple(layer_ids)
    check_layer_ids(ids, num_target_layers)
    return ids


def default_layer_ids(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Evenly spread ids, from layer 1 to layer L - 3; may repeat when the target is too shallow for so many taps."""
    if num_taps == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (num_taps - 1)) for i in range(num_taps))
