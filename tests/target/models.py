"""Tiny random Hugging Face models of several families, saved as folders, and the packs that the tests run through them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, Pack
from tp_dflash.config.target import TargetConfig
from tp_dflash.target import Target, read_target_facts

CPU = torch.device("cpu")
VOCAB = 67
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FULL = ["full_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "mistral": {"sliding_window": 4},
    "gemma3_text": {
        "sliding_window": 4,
        "layer_types": [*["sliding_attention"] * 4, *FULL],
        "tie_word_embeddings": True,
    },
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 3.0},
    "qwen3_next": {
        "layer_types": [*["linear_attention"] * 2, *FULL, "linear_attention", *FULL],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "num_experts": 0,
    },
}
LAYER_IDS = [0, 2, 3]


def make_model(model_type: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A random fp32 model with an lm_head; norm weights random in [0.5, 2] (near 0 where the norm multiplies by 1 + w)."""
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[model_type](**(SIZES | FAMILIES.get(model_type, {}) | fields))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    return randomise_norms(model)


def randomise_norms(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                one_plus = bool((parameter == 0).all())
                parameter.uniform_(-0.2, 0.2) if one_plus else parameter.uniform_(0.5, 2.0)
    return model


def save_model(model: PreTrainedModel, folder: Path, **options: Any) -> TargetConfig:
    model.save_pretrained(folder, **options)
    return TargetConfig(path=str(folder), dtype="float32", tokens_per_forward=64, forward_overhead_tokens=4)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load_target(config: TargetConfig, layer_ids: list[int] | None = None) -> Target:
    return Target.load(config, read_target_facts(config), LAYER_IDS if layer_ids is None else layer_ids, CPU)


def make_pack(*lengths: int, seed: int = 3, pack_id: int = 0) -> Pack:
    generator = torch.Generator().manual_seed(seed)
    documents = tuple(
        Document(
            index,
            torch.randint(3, VOCAB, (length,), generator=generator),
            torch.rand(length, generator=generator) < 0.8,
        )
        for index, length in enumerate(lengths)
    )
    return Pack(pack_id, 0, documents)


def make_layout(*lengths: int, pack_id: int = 0) -> BlockLayout:
    return BlockLayout.build(make_pack(*lengths, pack_id=pack_id), AnchorCaps(per_pack=12), seed=1, block_size=4)


def separate_outputs(model: PreTrainedModel, pack: Pack) -> tuple[list[Tensor], Tensor]:
    """The model's own hidden_states (each (T, D), embedding first) and logits (T, V), one document at a time."""
    outputs = []
    with torch.no_grad():
        for document in pack.documents:
            outputs.append(model(document.tokens_S[None], output_hidden_states=True, use_cache=False))
    hidden = [torch.cat([out.hidden_states[i][0] for out in outputs]) for i in range(len(outputs[0].hidden_states))]
    return hidden, torch.cat([out.logits[0] for out in outputs])
