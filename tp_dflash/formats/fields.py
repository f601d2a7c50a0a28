"""The network's numbers as the fields of a Qwen3 text config, and back: what both published layouts have in common.

Only what training used is written: no partial rotary factor, no M-RoPE, no linear-attention or vision field of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tp_dflash.blocks.layout import LabelMode
from tp_dflash.config.drafter import LayerType
from tp_dflash.drafter import DrafterShape

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class BlockFields:
    """What a layout says about blocks and taps, in its own places and by its own convention of layer ids."""

    block_size: int
    mask_token_id: int
    label_mode: LabelMode
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    sliding_causal: bool


def speculators_causal(config: Fields) -> bool:
    """Whether sliding layers of the speculators layout are causal inside a block; what is not said is served both ways."""
    return not config.get("sliding_window_non_causal", True)


def network_fields(shape: DrafterShape, dtype: str) -> dict[str, Any]:
    """Sizes and rotary of a Qwen3 config; the base of the rotary frequencies stands in its old and its new place."""
    slides = shape.sliding_window is not None
    return {
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "layer_types": list(shape.layer_types),
        "use_sliding_window": slides,
        "sliding_window": shape.sliding_window,
        "max_window_layers": shape.num_layers,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": dtype,
    }


def shape_of_fields(fields: Fields, blocks: BlockFields, source: str) -> DrafterShape:
    """The shape that a config describes; ValueError by name for what this network cannot be."""
    _refuse_other_networks(fields, source)
    layer_types = _layer_types(fields, source)
    heads = required(fields, "num_attention_heads", source)
    hidden = required(fields, "hidden_size", source)
    return DrafterShape(
        hidden_size=hidden,
        intermediate_size=required(fields, "intermediate_size", source),
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=fields.get("head_dim") or hidden // heads,
        layer_types=layer_types,
        sliding_window=required(fields, "sliding_window", source) if "sliding_attention" in layer_types else None,
        sliding_causal=blocks.sliding_causal,
        rope_theta=rope_theta(fields, source),
        rms_norm_eps=float(required(fields, "rms_norm_eps", source)),
        block_size=blocks.block_size,
        mask_token_id=blocks.mask_token_id,
        label_mode=blocks.label_mode,
        target_layer_ids=blocks.target_layer_ids,
        num_target_layers=blocks.num_target_layers,
        vocab_size=required(fields, "vocab_size", source),
        max_positions=required(fields, "max_position_embeddings", source),
    )


def required(fields: Fields, name: str, source: str) -> Any:
    """A field that must be there and not null; ValueError that names it otherwise."""
    if fields.get(name) is None:
        raise ValueError(f"{source}: expected {name}, got none; complete the drafter's config.json")
    return fields[name]


def rope_theta(fields: Fields, source: str) -> float:
    """Base of the rotary frequencies: of ``rope_parameters``, or the flat field; ValueError if the two differ."""
    nested = (fields.get("rope_parameters") or {}).get("rope_theta")
    flat = fields.get("rope_theta")
    if nested is not None and flat is not None and float(nested) != float(flat):
        raise ValueError(
            f"{source}: expected one rope_theta, got {nested} in rope_parameters and {flat} beside it; keep the one that "
            "was trained"
        )
    return float(required({"rope_theta": flat if nested is None else nested}, "rope_theta", source))


def rotary_kind(fields: Fields) -> str:
    """rope_type of a Qwen3 config, wherever it says one other than default."""
    tables = [fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
    kinds = [table.get("rope_type", table.get("type", "default")) for table in tables]
    return str(next((kind for kind in kinds if kind != "default"), "default"))


def rotary_setting(fields: Fields, name: str) -> Any:
    """A setting of rotary embeddings, wherever a config may have it; None if it has none."""
    tables = [fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}, fields]
    return next((table[name] for table in tables if table.get(name) is not None), None)


def _layer_types(fields: Fields, source: str) -> tuple[LayerType, ...]:
    num_layers = required(fields, "num_hidden_layers", source)
    types = fields.get("layer_types") or ["full_attention"] * num_layers
    if len(types) != num_layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"{source}: expected full_attention or sliding_attention for each of {num_layers} layers, got {types}; correct "
            "layer_types"
        )
    return tuple(types)


def _refuse_other_networks(fields: Fields, source: str) -> None:
    factor = rotary_setting(fields, "partial_rotary_factor")
    refused = {
        "hidden_act": (fields.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(fields.get("attention_bias")), False),
        "rope_type": (rotary_kind(fields), "default"),
        "partial_rotary_factor": (1.0 if factor is None else float(factor), 1.0),
        "mrope_section": (rotary_setting(fields, "mrope_section"), None),
    }
    for name, (got, expected) in refused.items():
        if got != expected:
            raise ValueError(
                f"{source}: expected {name} = {expected}, got {got}: the drafter network rotates the whole head plainly and "
                "has no biases; correct the config if it was copied from the target, else this drafter is not supported"
            )
