"""Small published drafters and targets for the tests of this room."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.drafter.small import made_drafter
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.config.target import TargetConfig
from tp_dflash.drafter import Drafter, DrafterShape
from tp_dflash.formats import PublishedDrafter, TargetIdentity, TrainingRecord, tensor_digests
from tp_dflash.target import TargetFacts, read_target_facts

# A target of the newer Qwen kind: nested config, heads of 256, a partial rotary turn, and a stale flat rope_theta.
TEXT_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 61,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def write_target(folder: Path, seed: int = 0, **changes) -> TargetConfig:
    """A target's folder: config, embedding and head rows, tokenizer and template files (contents do not matter)."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    text = TEXT_CONFIG | changes
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]} | text))
    (folder / "tokenizer.json").write_text(json.dumps({"seed": 0}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    generator = torch.Generator().manual_seed(seed)
    size = (text["vocab_size"], text["hidden_size"])
    tensors = {"model.embed_tokens.weight": torch.randn(size, generator=generator)}
    if not text["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.randn(size, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    return TargetConfig(path=str(folder), dtype="float32")


def shape_for(facts: TargetFacts, **changes) -> DrafterShape:
    settings = {"mask_token_id": 60, "block_size": 4, "num_layers": 2, "target_layer_ids": [3, 8]} | changes
    return DrafterShape.of(DrafterConfig(**settings), facts)


def trained(target: TargetConfig, dtype: torch.dtype = torch.float32, **changes) -> tuple[Drafter, PublishedDrafter]:
    """A drafter with random weights as training leaves it, and the same as it is published."""
    facts = read_target_facts(target)
    drafter = made_drafter(shape_for(facts, **changes))
    tensors = {name: parameter.detach().to(dtype) for name, parameter in drafter.named_parameters()}
    record = TrainingRecord(
        shape=drafter.shape,
        digests=tensor_digests(tensors),
        target=TargetIdentity.of(target, facts, name="example/target"),
        recipe={"learning_rate": 6e-4, "objective": {"ce": 1.0}},
        data={"sources": ["prompts.jsonl"], "documents": 300},
        results={"acceptance_length": {"gsm8k": 1.71}},
    )
    return drafter, PublishedDrafter(drafter.shape, tensors, record)
