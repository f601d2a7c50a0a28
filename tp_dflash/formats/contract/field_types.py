"""Which fields of a drafter's config.json are read, and of which kind each must be.

A field of the wrong kind is reported once and then taken as absent, so that the checks behind it need not fear it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Misfits = dict[str, str]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(item) for item in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
         "vocab_size", "max_position_embeddings", "sliding_window", "block_size", "num_target_layers", "draft_vocab_size",
         "speculative_tokens"),
        (_is_size, "a whole number above 0"),
    ),
    **dict.fromkeys(("mask_token_id",), (_is_count, "a whole number")),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), (_is_number, "a number above 0")),
    **dict.fromkeys(
        ("attention_bias", "tie_word_embeddings", "causal", "use_swa", "sample_from_anchor", "sliding_window_non_causal"),
        (_is_flag, "true or false"),
    ),
    **dict.fromkeys(
        ("hidden_act", "dtype", "torch_dtype", "model_type", "rope_type", "label_mode"), (_is_text, "a text")
    ),
    **dict.fromkeys(("target_layer_ids", "aux_hidden_state_layer_ids", "mrope_section"), (_is_counts, "a list of numbers")),
    **dict.fromkeys(("layer_types", "architectures"), (_is_texts, "a list of texts")),
    **dict.fromkeys(
        ("rope_parameters", "rope_scaling", "dflash_config", "transformer_layer_config", "speculators_config"),
        (_is_table, "a table"),
    ),
}  # fmt: skip


def well_typed(fields: Mapping[str, Any], misfits: Misfits, path: str = "") -> dict[str, Any]:
    """The fields without those of the wrong kind, whose places go into ``misfits`` with what was expected. null is absent."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        fits, expected = _KINDS.get(name, (None, ""))
        if value is None:
            continue
        if fits is not None and not fits(value):
            misfits[f"{path}{name}"] = f"{value!r}, not {expected}"
        else:
            kept[name] = well_typed(value, misfits, f"{path}{name}.") if isinstance(value, dict) else value
    return kept
