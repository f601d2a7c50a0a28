"""The z-lab layout: what Hugging Face remote code, vLLM and SGLang load (docs/formats.md).

A folder of config.json, model.safetensors (11 tensors a layer and 3 more, no prefix, no embedding, no head), the modelling
file for ``AutoModel.from_pretrained(..., trust_remote_code=True)``, a model card and the training record.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.config_file import read_config, write_about, write_json
from tp_dflash.formats.fields import BlockFields, network_fields, required, shape_of_fields
from tp_dflash.formats.new_folder import new_folder
from tp_dflash.formats.published_drafter import PublishedDrafter
from tp_dflash.formats.training_record import TrainingRecord
from tp_dflash.formats.weights import SHARD_BYTES, read_weights, write_weights

ARCHITECTURE = "DFlashDraftModel"
_MODEL_FILE = "dflash.py"


def write_zlab(folder: Path, drafter: PublishedDrafter, shard_bytes: int = SHARD_BYTES) -> None:
    """Write the folder whole or not at all; an earlier export under the same name is replaced."""
    with new_folder(folder) as fresh:
        write_weights(fresh, drafter.tensors, shard_bytes)
        write_json(fresh / "config.json", zlab_config(drafter.shape, drafter.dtype_name))
        remote_code = resources.files("tp_dflash.formats") / "remote_code" / _MODEL_FILE
        with resources.as_file(remote_code) as source:
            shutil.copyfile(source, fresh / _MODEL_FILE)
        write_about(fresh, drafter)


def read_zlab(folder: Path) -> PublishedDrafter:
    """Read a folder of this layout, ours or another's; ValueError by name for anything that is missing or contradictory."""
    return PublishedDrafter(
        zlab_shape(read_config(folder), str(folder)), read_weights(folder), TrainingRecord.read(folder)
    )


def zlab_config(shape: DrafterShape, dtype: str) -> dict[str, Any]:
    """The fields of config.json. Layer ids are written as trained: the layers whose output is taken."""
    dflash_config: dict[str, Any] = {
        "block_size": shape.block_size,
        "mask_token_id": shape.mask_token_id,
        "target_layer_ids": list(shape.target_layer_ids),
    }
    if shape.sliding_window is not None and not shape.sliding_causal:
        dflash_config["causal"] = False
    if shape.label_mode != "same_position":
        dflash_config["label_mode"] = shape.label_mode
        # vLLM decodes same-position labels only; this makes it refuse the folder instead of drafting one token off.
        dflash_config["sample_from_anchor"] = True
    return {
        "architectures": [ARCHITECTURE],
        "auto_map": {"AutoModel": f"{Path(_MODEL_FILE).stem}.{ARCHITECTURE}"},
        **network_fields(shape, dtype),
        "block_size": shape.block_size,
        "dflash_config": dflash_config,
        "num_target_layers": shape.num_target_layers,
    }


def zlab_shape(config: dict[str, Any], source: str) -> DrafterShape:
    """The shape that a config.json of this layout describes."""
    inner = required(config, "dflash_config", source)
    sizes = {value for value in (config.get("block_size"), inner.get("block_size")) if value is not None}
    if len(sizes) != 1:
        raise ValueError(
            f"{source}: expected one block_size, got {sorted(sizes)} at the top and in dflash_config; keep the trained one"
        )
    if inner.get("use_swa"):
        raise ValueError(
            f"{source}: expected layer_types to say which layers slide, got use_swa; write layer_types instead"
        )
    types = config.get("layer_types") or ["full_attention"]
    if inner.get("causal") and set(types) != {"sliding_attention"}:
        raise ValueError(
            f"{source}: expected full layers that see their whole block, got dflash_config.causal = true for {types}; "
            "remove it if it was not trained so, else this drafter is not supported"
        )
    blocks = BlockFields(
        block_size=sizes.pop(),
        mask_token_id=required(inner, "mask_token_id", source),
        label_mode=inner.get("label_mode", "same_position"),
        target_layer_ids=tuple(required(inner, "target_layer_ids", source)),
        num_target_layers=required(config, "num_target_layers", source),
        sliding_causal=inner.get("causal", True),
    )
    return shape_of_fields(config, blocks, source)
