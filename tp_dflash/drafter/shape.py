"""Everything that fixes the drafter network and its blocks, as numbers.

In: the drafter section of a run and the sizes of the target's text config, or a published config.json. Out: one frozen
DrafterShape. No tensors are made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tp_dflash.blocks.layout import LabelMode
from tp_dflash.config.drafter import DrafterConfig, LayerType
from tp_dflash.drafter.layer_ids import resolve_layer_ids


class TargetSizes(Protocol):
    """What the drafter takes over from the target's text config. rope_theta is the one that the target rotates with."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...


@dataclass(frozen=True)
class DrafterShape:
    """The network (widths, heads, rotary, which layers slide) and what its blocks mean (size, mask token, labels).

    target_layer_ids: tapped layers, counted from 0, by the layer whose output is taken. vocab_size: rows of the target's
    lm_head. max_positions: longest context of the target. sliding_window is None when no layer slides.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int | None
    sliding_causal: bool
    rope_theta: float
    rms_norm_eps: float
    block_size: int
    mask_token_id: int
    label_mode: LabelMode
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    vocab_size: int
    max_positions: int

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"expected query heads in whole groups, got {self.num_heads} over {self.num_kv_heads} key/value heads; "
                "change drafter.num_heads or drafter.num_kv_heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"expected an even head width for rotary halves, got {self.head_dim}; set drafter.head_dim"
            )
        if ("sliding_attention" in self.layer_types) != (self.sliding_window is not None):
            raise ValueError(
                f"expected a window exactly when a layer slides, got window {self.sliding_window} with "
                f"{list(self.layer_types)}; set drafter.sliding_window or drafter.layer_types"
            )

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def feature_size(self) -> int:
        """F = K x D: width of the context features, the tapped layers side by side."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def query_size(self) -> int:
        """H x E."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """G x E."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        attention = 2 * self.hidden_size * (self.query_size + self.kv_size) + 2 * self.head_dim
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        return self.num_layers * layer + (self.feature_size + 2) * self.hidden_size

    @property
    def num_vector_parameters(self) -> int:
        """Norm weights, of ``num_parameters``."""
        return self.num_layers * 2 * (self.head_dim + self.hidden_size) + 2 * self.hidden_size

    @property
    def first_predicted(self) -> int:
        """First block position that predicts a token: 1 for same-position labels, 0 for next-token labels."""
        return 1 if self.label_mode == "same_position" else 0

    @staticmethod
    def of(config: DrafterConfig, target: TargetSizes) -> DrafterShape:
        """The shape that a run's drafter section asks for; ValueError where it cannot fit the target."""
        return DrafterShape(
            hidden_size=target.hidden_size,
            intermediate_size=_given(config.intermediate_size, target.intermediate_size),
            num_heads=_given(config.num_heads, target.num_heads),
            num_kv_heads=_given(config.num_kv_heads, target.num_kv_heads),
            head_dim=_given(config.head_dim, target.head_dim),
            layer_types=_layer_types(config),
            sliding_window=config.sliding_window,
            sliding_causal=config.sliding_causal,
            rope_theta=float(config.rope_theta or target.rope_theta),
            rms_norm_eps=target.rms_norm_eps,
            block_size=config.block_size,
            mask_token_id=config.mask_token_id,
            label_mode=config.label_mode,
            target_layer_ids=resolve_layer_ids(config.target_layer_ids, target.num_layers, config.num_layers),
            num_target_layers=target.num_layers,
            vocab_size=target.vocab_size,
            max_positions=target.max_positions,
        )


def _given(chosen: int | None, default: int) -> int:
    return default if chosen is None else chosen


def _layer_types(config: DrafterConfig) -> tuple[LayerType, ...]:
    if config.layer_types is not None:
        return tuple(config.layer_types)
    below: LayerType = "full_attention" if config.sliding_window is None else "sliding_attention"
    return (*(below for _ in range(config.num_layers - 1)), "full_attention")
