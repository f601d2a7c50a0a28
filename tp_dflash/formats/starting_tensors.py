"""Initial weights of a run from a drafter that someone published."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.detect import read_published

# What may change between a published drafter and a run that starts from it: the weights' shapes do not depend on these.
_FREE = {
    "block_size",
    "mask_token_id",
    "label_mode",
    "sliding_window",
    "sliding_causal",
    "layer_types",
    "max_positions",
}


def starting_tensors(folder: Path, shape: DrafterShape) -> dict[str, Tensor]:
    """fp32 tensors of the published drafter in ``folder``; ValueError by name unless its network is that of ``shape``.

    Block size, mask token, label mode and windows may differ: training goes on with the run's.
    """
    published = read_published(folder, num_target_layers=shape.num_target_layers)
    differing = [
        f"{field.name} {getattr(published.shape, field.name)} in place of {getattr(shape, field.name)}"
        for field in fields(shape)
        if field.name not in _FREE and getattr(published.shape, field.name) != getattr(shape, field.name)
    ]
    if differing or published.shape.num_layers != shape.num_layers:
        raise ValueError(
            f"{folder}: expected a drafter of the run's network, got {'; '.join(differing) or 'another number of layers'}; "
            "change the drafter section or drafter.init_from"
        )
    return {name: tensor.to(torch.float32) for name, tensor in published.tensors.items()}
