"""Small drafters and random micro-steps for the tests of this room."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tp_dflash.blocks import BlockGeometry
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.drafter import Drafter, DrafterShape


@dataclass(frozen=True)
class Sizes:
    """A small target's text config."""

    num_layers: int = 12
    hidden_size: int = 24
    intermediate_size: int = 40
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    vocab_size: int = 61
    max_positions: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4


def small_shape(**changes) -> DrafterShape:
    """Block 4, two layers, two taps; keyword arguments are those of the drafter section."""
    settings = {"mask_token_id": 60, "block_size": 4, "num_layers": 2, "target_layer_ids": [3, 8]} | changes
    return DrafterShape.of(DrafterConfig(**settings), Sizes())


def sliding_shape(**changes) -> DrafterShape:
    """All layers but the last slide, with a window shorter than the documents."""
    return small_shape(**({"num_layers": 3, "sliding_window": 5} | changes))


def made_drafter(shape: DrafterShape, seed: int = 0, dtype: torch.dtype = torch.float32, **options) -> Drafter:
    """A drafter with large random weights and norm weights away from 1, so that every term shows."""
    drafter = Drafter(shape, **options)
    drafter.initialise(seed, std=0.3)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
    return drafter.to(dtype)


@dataclass(frozen=True, eq=False)
class Case:
    """A micro-step as lists (for the reference) and as tensors (for the drafter)."""

    context: list[tuple[int, int]]
    blocks: list[tuple[int, int]]
    features_TF: Tensor
    anchor_embeddings_AD: Tensor
    mask_embedding_D: Tensor
    geometry: BlockGeometry

    def inputs(self, dtype: torch.dtype = torch.float32):
        rows = (self.features_TF, self.anchor_embeddings_AD, self.mask_embedding_D)
        return (*(row.to(dtype) for row in rows), self.geometry)

    def changed(self, **tensors: Tensor) -> Case:
        return replace(self, **tensors)


def case_of(shape, context, blocks, seed=0, num_context=None, num_blocks=None) -> Case:
    """Random rows for these context tokens and anchors, padded to the given numbers with zero rows."""
    generator = torch.Generator().manual_seed(seed)
    columns = lambda rows, i: torch.tensor([row[i] for row in rows], dtype=torch.int64)  # noqa: E731
    geometry = BlockGeometry.build(
        columns(context, 0),
        columns(context, 1),
        columns(blocks, 0),
        columns(blocks, 1),
        shape.block_size,
        num_context=num_context,
        num_blocks=num_blocks,
    )
    features = torch.zeros(geometry.num_context, shape.feature_size)
    features[: len(context)] = torch.randn(len(context), shape.feature_size, generator=generator)
    anchors = torch.zeros(geometry.num_blocks, shape.hidden_size)
    anchors[: len(blocks)] = torch.randn(len(blocks), shape.hidden_size, generator=generator)
    mask = torch.randn(shape.hidden_size, generator=generator)
    return Case(context, blocks, features, anchors, mask, geometry)


def document(index: int, length: int) -> list[tuple[int, int]]:
    return [(index, position) for position in range(length)]


def mixed_case(shape, seed=0, **padding) -> Case:
    """Two documents, five blocks: unsorted, overlapping, repeated, one at a document's first token."""
    return case_of(
        shape, document(0, 9) + document(1, 14), [(1, 9), (0, 3), (1, 7), (1, 9), (0, 0)], seed=seed, **padding
    )
