"""The drafter's parameters by published name: their shapes, their initial values, and full values in and out of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tp_dflash.drafter.shape import DrafterShape


def parameter_shapes(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published drafter (docs/formats.md): 11 a layer, then fc, hidden_norm and norm."""
    D, I = shape.hidden_size, shape.intermediate_size  # noqa: E741
    layer = {
        "input_layernorm": (D,),
        "self_attn.q_proj": (shape.query_size, D),
        "self_attn.k_proj": (shape.kv_size, D),
        "self_attn.v_proj": (shape.kv_size, D),
        "self_attn.o_proj": (D, shape.query_size),
        "self_attn.q_norm": (shape.head_dim,),
        "self_attn.k_norm": (shape.head_dim,),
        "post_attention_layernorm": (D,),
        "mlp.gate_proj": (I, D),
        "mlp.up_proj": (I, D),
        "mlp.down_proj": (D, I),
    }
    shapes = {f"layers.{i}.{name}.weight": size for i in range(shape.num_layers) for name, size in layer.items()}
    return shapes | {"fc.weight": (D, shape.feature_size), "hidden_norm.weight": (D,), "norm.weight": (D,)}


def initial_parameter(name: str, size: tuple[int, ...], seed: int, std: float) -> Tensor:
    """Full initial value, fp32 on the CPU: norm weights 1, matrices normal with deviation ``std``.

    Each parameter has a generator of its own, keyed by (seed, name): no rank, no sharding and no order of calls can
    change what is drawn.
    """
    if len(size) == 1:
        return torch.ones(size)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(size).normal_(0.0, std, generator=generator)


@torch.no_grad()
def set_parameter(parameter: nn.Parameter, full: Tensor) -> None:
    """Write a full value into a parameter, whole or sharded (each rank keeps its own part; nothing is sent)."""
    # Imported here: sizes and plans need none of it, and it takes half a second.
    from torch.distributed.tensor import DTensor, distribute_tensor

    if parameter.shape != full.shape:
        raise ValueError(
            f"expected a value of shape {tuple(parameter.shape)}, got {tuple(full.shape)}; see the names' file"
        )
    if isinstance(parameter, DTensor):
        full = full.to(parameter.to_local().device, parameter.dtype)
        parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None))
    else:
        parameter.copy_(full)


def load_parameters(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write full values into every parameter of a drafter, sharded or not; ValueError unless the names are the same."""
    parameters = dict(module.named_parameters())
    if parameters.keys() != tensors.keys():
        missing, unexpected = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
        raise ValueError(
            f"expected the drafter's {len(parameters)} tensors, got {len(tensors)}: missing {missing}, unexpected "
            f"{unexpected}; use a drafter of the same layers"
        )
    for name, parameter in parameters.items():
        set_parameter(parameter, tensors[name])
