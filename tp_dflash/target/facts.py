"""What the rest of the project needs to know of a target, without its weights.

In: the target section of a run. Out: one frozen TargetFacts, read from config.json and checked against the shapes in the
safetensors headers. Targets whose logits are not head @ hidden (up to a constant factor) are refused here, on every rank.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from tp_dflash.config.target import TargetConfig
from tp_dflash.target.source import load_model_config, target_file, target_folder, text_config
from tp_dflash.target.weight_files import WeightFiles

# Text model types whose embedding module itself multiplies its rows by the square root of the hidden size.
_ROOT_SCALED_EMBEDDINGS = ("gemma", "vaultgemma", "t5gemma2", "embedding_gemma", "diffusion_gemma")
_EPSILON_NAMES = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "norm_epsilon",
    "layernorm_epsilon",
)
_MLP_NAMES = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")


@dataclass(frozen=True)
class TargetFacts:
    """Sizes, tokens and conventions of a target's text decoder.

    vocab_size: rows of the lm_head and of the embedding table (the model's, which may be more than the tokenizer's).
    tied: the lm_head is the embedding table. logit_scale: the model's logits are logit_scale x head @ hidden.
    embedding_scale: the embedding module's output is embedding_scale x the table's row.
    rotary_base, mlp_width: None where the config has none; rope_theta and intermediate_size then raise by name.
    """

    name: str
    architectures: tuple[str, ...]
    model_type: str
    text_model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    tied: bool
    pad_token_id: int | None
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    logit_scale: float
    embedding_scale: float
    rotary_base: float | None
    mlp_width: int | None

    @property
    def rope_theta(self) -> float:
        """Base of the target's rotary frequencies; ValueError for a target without rotary embeddings."""
        if self.rotary_base is None:
            raise ValueError(f"{self.name}: expected rope_theta in the config, got none; set drafter.rope_theta")
        return self.rotary_base

    @property
    def intermediate_size(self) -> int:
        """Width of the target's dense MLP; ValueError for a target that states none."""
        if self.mlp_width is None:
            raise ValueError(
                f"{self.name}: expected intermediate_size in the config, got none; set drafter.intermediate_size"
            )
        return self.mlp_width

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Padding, begin and end tokens: none of them may stand for a masked position."""
        pad = () if self.pad_token_id is None else (self.pad_token_id,)
        return frozenset((*pad, *self.bos_token_ids, *self.eos_token_ids))


def read_target_facts(config: TargetConfig) -> TargetFacts:
    """Facts of the target; ValueError by name where a size is missing, contradicts the files, or cannot be honoured."""
    model_config = load_model_config(config)
    text = text_config(model_config)
    name = config.path or f"{model_config.model_type} (random weights)"
    _refuse_nonlinear_logits(text, name)
    heads = _required(text, "num_attention_heads", name)
    hidden = _required(text, "hidden_size", name)
    facts = TargetFacts(
        name=name,
        architectures=tuple(_read(model_config, "architectures") or ()),
        model_type=model_config.model_type,
        text_model_type=text.model_type,
        hidden_size=hidden,
        num_layers=_required(text, "num_hidden_layers", name),
        num_heads=heads,
        num_kv_heads=_read(text, "num_key_value_heads") or heads,
        head_dim=_read(text, "head_dim") or hidden // heads,
        vocab_size=_required(text, "vocab_size", name),
        max_positions=_read(text, "max_position_embeddings") or _required(text, "n_positions", name),
        rms_norm_eps=_epsilon(text, name),
        tied=_tied(model_config, text),
        pad_token_id=_first(_token_ids(config, model_config, text, "pad_token_id")),
        bos_token_ids=_token_ids(config, model_config, text, "bos_token_id"),
        eos_token_ids=_token_ids(config, model_config, text, "eos_token_id"),
        dtype=torch.bfloat16 if config.dtype == "bfloat16" else torch.float32,
        logit_scale=_logit_scale(text),
        embedding_scale=_embedding_scale(text, hidden),
        rotary_base=_rotary_base(text),
        mlp_width=next((int(_read(text, key)) for key in _MLP_NAMES if isinstance(_read(text, key), int)), None),
    )
    if not config.random_weights:
        WeightFiles(target_folder(config)).check_shapes(facts.vocab_size, facts.hidden_size, facts.tied)
    return facts


def _read(config: PreTrainedConfig, name: str) -> Any:
    """A field that some model types lack: None there."""
    return getattr(config, name) if hasattr(config, name) else None


def _epsilon(text: PreTrainedConfig, name: str) -> float:
    """The drafter's norms take the target's; a guess would train and be served without a word."""
    found = next((_read(text, key) for key in _EPSILON_NAMES if _read(text, key)), None)
    if found is None:
        raise ValueError(
            f"{name}: expected the norms' epsilon in the text config ({type(text).__name__}), got none of "
            f"{', '.join(_EPSILON_NAMES)}; write rms_norm_eps into config.json or target.shape"
        )
    return float(found)


def _required(config: PreTrainedConfig, name: str, source: str) -> int:
    value = _read(config, name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{source}: expected a positive {name} in the text config ({type(config).__name__}), got {value}; correct "
            "config.json"
        )
    return value


def _tied(model_config: PreTrainedConfig, text: PreTrainedConfig) -> bool:
    outer = _read(model_config, "tie_word_embeddings")
    return bool(_read(text, "tie_word_embeddings") if outer is None else outer)


def _rotary_base(text: PreTrainedConfig) -> float | None:
    """rope_parameters first (that of full attention where layers differ), the stale flat field last."""
    parameters = _read(text, "rope_parameters") or {}
    for candidate in (parameters, parameters.get("full_attention"), *parameters.values()):
        if isinstance(candidate, dict) and candidate.get("rope_theta") is not None:
            return float(candidate["rope_theta"])
    flat = _read(text, "rope_theta")
    return None if flat is None else float(flat)


def _token_ids(
    config: TargetConfig, model_config: PreTrainedConfig, text: PreTrainedConfig, name: str
) -> tuple[int, ...]:
    """Ids from the text config, the wrapper's and generation_config.json together, ascending."""
    values = [_read(text, name), _read(model_config, name)]
    file = target_file(config, "generation_config.json")
    if file is not None:
        values.append(json.loads(file.read_text(encoding="utf-8")).get(name))
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return tuple(sorted({item for item in flat if isinstance(item, int) and item >= 0}))


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _embedding_scale(text: PreTrainedConfig, hidden_size: int) -> float:
    if text.model_type == "minicpm3":
        return float(text.scale_emb)
    return math.sqrt(hidden_size) if text.model_type.startswith(_ROOT_SCALED_EMBEDDINGS) else 1.0


def _logit_scale(text: PreTrainedConfig) -> float:
    """Constant factor between head @ hidden and the model's logits (Cohere, Falcon-H1 multiply; Granite, MiniCPM divide)."""
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):
        scale *= float(_read(text, name) or 1.0)
    return scale / float(_read(text, "logits_scaling") or 1.0)


def _refuse_nonlinear_logits(text: PreTrainedConfig, name: str) -> None:
    for field in ("final_logit_softcapping", "output_logit_soft_cap"):
        if _read(text, field):
            raise ValueError(
                f"{name}: expected logits that are head @ hidden, got {field} = {_read(text, field)}, which bends them; "
                "such targets are not supported"
            )
    if isinstance(_read(text, "logit_scale"), str):
        raise ValueError(
            f"{name}: expected a number as logit_scale, got {_read(text, 'logit_scale')!r}; such targets are not supported"
        )
