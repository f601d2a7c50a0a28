"""A target that needs more than one GPU: its projections split over a group of target ranks, by transformers' own plan.

In: a decoder in host memory and a group. Out: the same decoder with this rank's share of every projection that the plan names
(`base_model_tp_plan` of its config); everything else is held whole by every rank. Each rank gives the whole hidden states, so
taps and teacher rows need to know nothing of it. For inference only: no adjoint is defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

# Held whole: norms on heads, and the embedding table, whose rows are read by token id and sent as anchor embeddings.
_WHOLE_STYLES = frozenset({"replicated_with_grad_allreduce", "embedding_rowwise"})

_Split = Callable[[nn.Linear, str, ProcessGroup], None]


def split_decoder(decoder: nn.Module, group: ProcessGroup) -> None:
    """Keep this rank's share, in place; ValueError by name where the plan or a size cannot be honoured.

    colwise: output rows of the weight are split. rowwise: input columns are split and the partial outputs added up over the
    group. colwise_gather_output: output rows are split and the outputs laid side by side again.
    """
    splits: dict[str, _Split] = {
        "colwise": _split_rows,
        "rowwise": _split_columns,
        "colwise_gather_output": _split_rows_and_gather,
    }
    for name, module, style in _planned_modules(decoder):
        if style in _WHOLE_STYLES:
            continue
        if style not in splits or not isinstance(module, nn.Linear):
            raise ValueError(
                f"{type(decoder).__name__}: expected linear projections split as {sorted(splits)}, got {name} "
                f"({type(module).__name__}) as {style}; run this target on one GPU a rank"
            )
        splits[style](module, name, group)


def _planned_modules(decoder: nn.Module) -> list[tuple[str, nn.Module, str]]:
    config: Any = decoder.config
    plan = config.base_model_tp_plan
    if not plan:
        raise ValueError(
            f"{type(decoder).__name__}: expected a tensor-parallel plan in {type(config).__name__}, got none; run this target on "
            "one GPU a rank"
        )
    styles = {re.compile(re.escape(pattern).replace(r"\*", r"\d+")): style for pattern, style in plan.items()}
    return [
        (name, module, style)
        for name, module in decoder.named_modules()
        for pattern, style in styles.items()
        if pattern.fullmatch(name)
    ]


def _share(size: int, name: str, group: ProcessGroup) -> slice:
    """This rank's part of ``size`` rows or columns; heads and MLP columns must split evenly."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if size % ranks:
        raise ValueError(
            f"{name}: expected a width that {ranks} target ranks share evenly, got {size}; choose a number of ranks that divides "
            "the target's key/value heads and MLP width"
        )
    return slice(rank * size // ranks, (rank + 1) * size // ranks)


def check_heads(num_kv_heads: int, group: ProcessGroup) -> None:
    """ValueError unless whole key/value heads go to every rank: an even split of their width alone would cut heads."""
    _share(num_kv_heads, "key/value heads", group)


def _split_rows(module: nn.Linear, name: str, group: ProcessGroup) -> None:
    rows = _share(module.out_features, name, group)
    module.weight = _frozen(module.weight[rows])
    if module.bias is not None:
        module.bias = _frozen(module.bias[rows])
    module.out_features = module.weight.shape[0]


def _split_columns(module: nn.Linear, name: str, group: ProcessGroup) -> None:
    columns = _share(module.in_features, name, group)
    module.weight = _frozen(module.weight[:, columns])
    if module.bias is not None and dist.get_rank(group) != 0:
        module.bias = _frozen(torch.zeros_like(module.bias))
    module.in_features = module.weight.shape[1]

    def add_up(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        total = output.clone()
        dist.all_reduce(total, group=group)
        return total

    module.register_forward_hook(add_up)


def _split_rows_and_gather(module: nn.Linear, name: str, group: ProcessGroup) -> None:
    _split_rows(module, name, group)

    def lay_side_by_side(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        parts = [torch.empty_like(output) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, output.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    module.register_forward_hook(lay_side_by_side)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.clone(memory_format=torch.contiguous_format), requires_grad=False)
