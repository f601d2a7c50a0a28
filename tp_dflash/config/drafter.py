"""The network that is trained and the shape of its blocks."""

from __future__ import annotations

import itertools
from typing import Literal

from pydantic import Field, model_validator

from tp_dflash.config.section import Section

LayerType = Literal["full_attention", "sliding_attention"]


class DrafterConfig(Section):
    """Sizes left unset are those of the target's text config."""

    mask_token_id: int = Field(
        ge=0,
        description="Token id of block positions 1..B-1: an existing embedding row of the target that its text never "
        "uses, neither padding nor end of sequence.",
    )
    block_size: int = Field(16, ge=2, description="B: tokens of a block, the anchor included.")
    num_layers: int = Field(5, ge=1, description="Decoder layers of the drafter.")
    target_layer_ids: list[int] | None = Field(
        None,
        min_length=1,
        description="Tapped layers of the target (outputs, counted from 0), ascending; the last layer cannot be tapped. "
        "Unset: as many as the drafter has layers, spread evenly.",
    )
    label_mode: Literal["same_position", "next_token"] = Field(
        "same_position",
        description="What block position k predicts: its own token (k = 1..B-1), or the token after it (k = 0..B-1).",
    )
    intermediate_size: int | None = Field(None, ge=1, description="Width of the MLP; unset: as the target.")
    num_heads: int | None = Field(None, ge=1, description="Query heads; unset: as the target.")
    num_kv_heads: int | None = Field(None, ge=1, description="Key and value heads; unset: as the target.")
    head_dim: int | None = Field(None, ge=2, multiple_of=2, description="Width of a head; unset: as the target.")
    rope_theta: float | None = Field(
        None, gt=0, description="Base of the rotary frequencies, which turn the whole head; unset: as the target."
    )
    sliding_window: int | None = Field(
        None,
        ge=1,
        description="Window W of the sliding layers: keys at positions > query position - W. Unset: none slide.",
    )
    layer_types: list[LayerType] | None = Field(
        None,
        description='"full_attention" or "sliding_attention" for each layer. Unset: with a sliding_window every layer '
        "but the last slides, without one none does.",
    )
    sliding_causal: bool = Field(
        True,
        description="Sliding layers see no later position of their own block, as servers run them; false makes them "
        "bidirectional and is written into the export.",
    )
    init_from: str | None = Field(
        None, description="Folder of a published drafter to start from; its sizes must be those of this section."
    )
    init_std: float = Field(
        0.02, gt=0, description="Standard deviation of the initial matrices; norm weights start at 1."
    )
    attention: Literal["auto", "sdpa", "flex"] = Field(
        "auto", description="Attention backend; auto: flex_attention on GPUs, masked SDPA on CPUs."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute each layer in the backward pass: less memory, about a third more drafter work."
    )
    compile: bool = Field(
        False,
        description="Run each layer through torch.compile. Without it only attention, rotary turns and the gated product are "
        "compiled, on GPUs.",
    )

    @model_validator(mode="after")
    def _layer_ids_ascend(self) -> DrafterConfig:
        ids = self.target_layer_ids
        if ids is not None and (ids[0] < 0 or any(low >= high for low, high in itertools.pairwise(ids))):
            raise ValueError(
                f"target_layer_ids: expected distinct ids in ascending order from 0 on, got {ids}; sort them or unset "
                "drafter.target_layer_ids"
            )
        return self

    @model_validator(mode="after")
    def _layer_types_fit(self) -> DrafterConfig:
        types = self.layer_types
        if types is not None and len(types) != self.num_layers:
            raise ValueError(
                f"layer_types: expected one for each of {self.num_layers} layers, got {len(types)}; change "
                "drafter.layer_types or drafter.num_layers"
            )
        slides = types is not None and "sliding_attention" in types
        if slides and self.sliding_window is None:
            raise ValueError(
                "layer_types: expected a window for its sliding layers, got none; set drafter.sliding_window"
            )
        if self.sliding_window is not None and not slides and (types is not None or self.num_layers == 1):
            raise ValueError(
                f"sliding_window: expected a sliding layer for the window {self.sliding_window}, got full_attention "
                "only; change drafter.layer_types or unset drafter.sliding_window"
            )
        return self

    @model_validator(mode="after")
    def _heads_group(self) -> DrafterConfig:
        if self.num_heads is not None and self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: expected a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}; change "
                "drafter.num_heads or drafter.num_kv_heads"
            )
        return self
