"""The speculators layout, which vLLM loads by itself (docs/formats.md).

The body's tensors as in the z-lab layout, and beside them the target's embedding table and lm_head, the latter reduced to
the drafter's own vocabulary if it has one (then with d2t and t2d). Layer ids here count hidden states: ours + 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.config_file import read_config, write_about, write_json
from tp_dflash.formats.fields import BlockFields, network_fields, required, shape_of_fields, speculators_causal
from tp_dflash.formats.new_folder import new_folder
from tp_dflash.formats.published_drafter import PublishedDrafter
from tp_dflash.formats.target_matrices import TargetMatrices
from tp_dflash.formats.training_record import TrainingRecord
from tp_dflash.formats.weights import SHARD_BYTES, read_weights, write_weights
from tp_dflash.head import DraftVocabulary

_OF_TARGET = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")


def write_speculators(
    folder: Path,
    drafter: PublishedDrafter,
    matrices: TargetMatrices,
    target_name: str | None = None,
    target_architectures: tuple[str, ...] = (),
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the folder whole or not at all. The target's name is the record's where none is given."""
    if target_name is None:
        if drafter.record is None:
            raise ValueError("expected the target's name for speculators_config.verifier, got none; give target_name")
        target_name, target_architectures = drafter.record.target.name_or_path, drafter.record.target.architectures
    rows, width = matrices.embeddings_VD.shape
    if (rows, width) != (drafter.shape.vocab_size, drafter.shape.hidden_size):
        raise ValueError(
            f"expected an embedding table of {(drafter.shape.vocab_size, drafter.shape.hidden_size)}, got {(rows, width)}; "
            "name the target that the drafter was trained for"
        )
    draft_vocab_size = matrices.head_WD.shape[0]
    config = speculators_config(drafter.shape, drafter.dtype_name, draft_vocab_size, target_name, target_architectures)
    with new_folder(folder) as fresh:
        write_weights(fresh, {**drafter.tensors, **_target_tensors(drafter, matrices)}, shard_bytes)
        write_json(fresh / "config.json", config)
        write_about(fresh, drafter)


def read_speculators(folder: Path, num_target_layers: int | None = None) -> tuple[PublishedDrafter, TargetMatrices]:
    """Read a folder of this layout: the drafter, and the target's matrices that it carries.

    num_target_layers: for folders of others, which do not say how deep the target is.
    """
    config = read_config(folder)
    tensors = read_weights(folder)
    shape = speculators_shape(config, str(folder), num_target_layers)
    carried = {name: tensors.pop(name) for name in _OF_TARGET if name in tensors}
    missing = [name for name in _OF_TARGET[:2] if name not in carried]
    if missing:
        raise ValueError(f"{folder}: expected the target's {missing}, got none; export the drafter again")
    vocabulary = DraftVocabulary.from_d2t(carried["d2t"], shape.vocab_size) if "d2t" in carried else None
    matrices = TargetMatrices(carried["embed_tokens.weight"], carried["lm_head.weight"], vocabulary)
    return PublishedDrafter(shape, tensors, TrainingRecord.read(folder)), matrices


def speculators_config(
    shape: DrafterShape, dtype: str, draft_vocab_size: int, target_name: str, target_architectures: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of config.json."""
    fields: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": network_fields(shape, dtype),
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in shape.target_layer_ids],
        "block_size": shape.block_size,
        "draft_vocab_size": draft_vocab_size,
        "mask_token_id": shape.mask_token_id,
        "num_target_layers": shape.num_target_layers,
        "target_hidden_size": shape.hidden_size,
        "tie_word_embeddings": False,
        "dtype": dtype,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": shape.block_size - shape.first_predicted}
            ],
            "verifier": {"name_or_path": target_name, "architectures": list(target_architectures)},
        },
    }
    if shape.sliding_window is not None:
        # Never for full layers only: vLLM takes "not non-causal" as causal for every layer.
        fields["sliding_window_non_causal"] = not shape.sliding_causal
    if shape.label_mode == "next_token":
        fields["sample_from_anchor"] = True
    return fields


def speculators_shape(config: dict[str, Any], source: str, num_target_layers: int | None = None) -> DrafterShape:
    """The shape that a config.json of this layout describes."""
    depth = config.get("num_target_layers") or num_target_layers
    if depth is None:
        raise ValueError(
            f"{source}: expected the number of the target's layers, got none: this layout need not say it; name the target"
        )
    network = required(config, "transformer_layer_config", source)
    slides = "sliding_attention" in (network.get("layer_types") or ())
    blocks = BlockFields(
        block_size=required(config, "block_size", source),
        mask_token_id=required(config, "mask_token_id", source),
        label_mode="next_token" if config.get("sample_from_anchor") else "same_position",
        target_layer_ids=tuple(layer_id - 1 for layer_id in required(config, "aux_hidden_state_layer_ids", source)),
        num_target_layers=depth,
        # Full layers say nothing of it: the default of a shape without sliding layers.
        sliding_causal=speculators_causal(config) if slides else True,
    )
    return shape_of_fields(network, blocks, source)


def _target_tensors(drafter: PublishedDrafter, matrices: TargetMatrices) -> dict[str, Tensor]:
    head, table = matrices.head_WD.to(drafter.dtype), matrices.embeddings_VD.to(drafter.dtype)
    # A tied head is the same memory; a file holds each tensor for itself.
    tensors = {"embed_tokens.weight": table, "lm_head.weight": head.clone()}
    if matrices.vocabulary is not None:
        tensors |= {"d2t": matrices.vocabulary.d2t, "t2d": matrices.vocabulary.t2d}
    return tensors
