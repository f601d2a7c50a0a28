"""The frozen text decoder of a target on its device, without the lm_head.

In: the target section and the target's facts. Out: a Hugging Face base model in evaluation mode whose parameters need no
gradient. A tensor that the files lack is an error: nothing is left at initial values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from tp_dflash.config.target import TargetConfig
from tp_dflash.target.facts import TargetFacts
from tp_dflash.target.quiet import quiet_transformers
from tp_dflash.target.random_rows import random_rows
from tp_dflash.target.source import load_model_config, target_folder, text_config
from tp_dflash.target.taps import decoder_layers, text_decoder
from tp_dflash.target.tensor_parallel import check_shares, split_decoder, split_parameters

if TYPE_CHECKING:  # modelling code takes seconds to import, and planning needs none of it
    from transformers import PreTrainedConfig


def load_decoder(
    config: TargetConfig, facts: TargetFacts, device: torch.device, group: ProcessGroup | None = None
) -> nn.Module:
    """Load (or make up) the text decoder; what a wrapper holds beside it (vision, audio) is dropped.

    group: ranks that share one decoder; it is then made in host memory, and only this rank's share goes to the device.
    """
    shared = group is not None and dist.get_world_size(group) > 1
    if group is not None:
        check_shares(facts, dist.get_world_size(group))
    first = torch.device("cpu") if shared else device
    decoder = _random_decoder(config, facts, first) if config.random_weights else _stored_decoder(config, facts, first)
    if group is not None and shared:
        split_decoder(decoder, group)
        decoder.to(device)
    decoder.eval().requires_grad_(False)
    if config.compile:
        for layer in decoder_layers(decoder, facts.num_layers):
            # Only the layer's own forward: compiling the module would trace the hooks that write features.
            layer.forward = torch.compile(layer.forward, dynamic=True)
    return decoder


def count_decoder_parameters(config: TargetConfig, num_ranks: int = 1) -> int:
    """Parameters of the text decoder that each of so many ranks holds, embedding table included and lm_head not.

    No weight is made. ValueError by name where the decoder cannot be split so.
    """
    from transformers import AutoModel

    with torch.device("meta"):
        decoder = text_decoder(AutoModel.from_config(_decoder_config(load_model_config(config))))
    if num_ranks > 1:
        return split_parameters(decoder, num_ranks)
    return sum(parameter.numel() for parameter in decoder.parameters())


def _decoder_config(model_config: PreTrainedConfig) -> PreTrainedConfig:
    """The text config where transformers can build its model alone, else the whole one."""
    from transformers import MODEL_MAPPING

    text = text_config(model_config)
    return text if type(text) in MODEL_MAPPING else model_config


def _random_decoder(config: TargetConfig, facts: TargetFacts, device: torch.device) -> nn.Module:
    """Weights drawn on the device itself; the embedding table is that of ``read_embedding_rows``."""
    from transformers import AutoModel

    model_config = _decoder_config(load_model_config(config))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        model = AutoModel.from_config(model_config, dtype=facts.dtype, attn_implementation=config.attention)
    decoder = text_decoder(model)
    table = decoder.get_input_embeddings().weight  # type: ignore[operator]
    with torch.no_grad():
        table.copy_(random_rows("embedding", 0, facts.vocab_size, facts.hidden_size, facts.dtype, device))
    return decoder


def _stored_decoder(config: TargetConfig, facts: TargetFacts, device: torch.device) -> nn.Module:
    from transformers import AutoModel
    from transformers.utils import is_accelerate_available

    # Straight to the GPU where accelerate can do it; otherwise through the CPU's memory.
    placed: dict[str, Any] = {"device_map": device} if is_accelerate_available() and device.type == "cuda" else {}
    with quiet_transformers():
        model, info = AutoModel.from_pretrained(
            str(target_folder(config)),
            dtype=facts.dtype,
            attn_implementation=config.attention,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            **placed,
        )
    decoder = text_decoder(model)
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    missing = sorted(key for key in info["missing_keys"] if key.startswith(f"{prefix}." if prefix else ""))
    if missing:
        raise ValueError(
            f"{facts.name}: expected every weight of {type(decoder).__name__} in the safetensors files, got none for "
            f"{missing[:5]} ({len(missing)} in all); export the model again"
        )
    return decoder.to(device)
