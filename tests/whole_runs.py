"""Whole runs with a tiny random target: a folder with model, tokenizer and documents, and a rank's function to train on it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tp_dflash.config.load import parse_config
from tp_dflash.placement import Placement

WORDS = [f"w{index}" for index in range(40)]
SPECIAL = ["<pad>", "<eos>", "<mask>"]


def make_folder(folder: Path, num_documents: int = 13, words: int = 10) -> Path:
    """A target of five layers whose tokenizer knows 43 words, and texts of ``words`` to twice as many words."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=47,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    with (folder / "train.jsonl").open("w") as lines:
        for index in range(num_documents):
            length = words + index % (words + 1)
            text = " ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=generator).tolist())
            lines.write(json.dumps({"text": text}) + "\n")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"w{i} w{i + 1} w3"}) + "\n" for i in range(3)))
    return folder


def settings(folder: Path, run: str, placement: dict[str, object], **changes: dict[str, object]) -> dict[str, object]:
    """Settings of a run in ``folder / run``, fp32, with sections changed by ``changes``."""
    base: dict[str, dict[str, object]] = {
        "target": {"path": str(folder), "dtype": "float32"},
        "drafter": {"block_size": 4, "num_layers": 2, "mask_token_id": 2, "target_layer_ids": [1, 3]},
        "data": {
            "train": [str(folder / "train.jsonl")],
            "max_length": 32,
            "token_budget": 48,
            "cache": str(folder / "cache"),
            "num_workers": 0,
        },
        "anchors": {"per_pack": 8},
        "placement": placement,
        "optimizer": {"learning_rate": 3e-3},
        "training": {
            "run_folder": str(folder / run),
            "epochs": 2,
            "compute_dtype": "float32",
            "head_chunk_rows": 16,
            "timeout_seconds": 40,
        },
        "checkpoint": {"every_steps": 3, "export_dtype": "float32"},
        "logging": {"every_steps": 2, "tensorboard": False},
    }
    for section, values in changes.items():
        base.setdefault(section, {}).update(values)
    return dict(base)


def train_rank(rank: int, run_settings: dict[str, object]) -> None:
    """One rank of a run; the default process group is there."""
    from tp_dflash.training.run import run_training

    config = parse_config(run_settings)
    world = dist.get_world_size()
    run_training(config, Placement.resolve(config.placement, world, world), rank, ["test"])
