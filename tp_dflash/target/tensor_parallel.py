"""A target that needs more than one GPU: its projections split over a group of target ranks, by transformers' own plan.

In: a decoder in host memory and a group. Out: the same decoder with this rank's share of every projection that the plan names
(`base_model_tp_plan` of its config); everything else is held whole by every rank. Each rank gives the whole hidden states, so
taps and teacher rows need to know nothing of it. For inference only: no adjoint is defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tp_dflash.target.facts import TargetFacts

# Held whole: norms on heads, and the embedding table, whose rows are read by token id and sent as anchor embeddings.
_WHOLE_STYLES = frozenset({"replicated_with_grad_allreduce", "embedding_rowwise"})


@dataclass(frozen=True)
class _Share:
    """Which part of a size is this rank's. group: None where parameters are only counted, and nothing is computed."""

    num_ranks: int
    rank: int
    group: ProcessGroup | None = None

    def of(self, size: int, name: str) -> slice:
        """This rank's part of ``size`` rows or columns; heads and MLP columns must split evenly."""
        if size % self.num_ranks:
            raise ValueError(
                f"{name}: expected a size that {self.num_ranks} target ranks share evenly, got {size}; choose a "
                "placement.target_tensor_parallel that divides the target's key/value heads and MLP width"
            )
        return slice(self.rank * size // self.num_ranks, (self.rank + 1) * size // self.num_ranks)


_Split = Callable[[nn.Linear, str, _Share], None]


def check_shares(facts: TargetFacts, num_ranks: int) -> None:
    """ValueError unless whole key/value heads go to every rank: an even split of their width alone would cut heads."""
    _Share(num_ranks, 0).of(facts.num_kv_heads, f"{facts.name}: key/value heads")


def split_decoder(decoder: nn.Module, group: ProcessGroup) -> None:
    """Keep this rank's share of a group, in place; ValueError by name where the plan or a size cannot be honoured.

    colwise: output rows of the weight are split. rowwise: input columns are split and the partial outputs added up over the
    group. colwise_gather_output: output rows are split and the outputs laid side by side again.
    """
    _split(decoder, _Share(dist.get_world_size(group), dist.get_rank(group), group))


def split_parameters(decoder: nn.Module, num_ranks: int) -> int:
    """Parameters that each of so many ranks holds; the decoder (on the meta device) is split in place and of no other use."""
    _split(decoder, _Share(num_ranks, 0))
    return sum(parameter.numel() for parameter in decoder.parameters())


def _split(decoder: nn.Module, share: _Share) -> None:
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
                f"({type(module).__name__}) as {style}; set placement.target_tensor_parallel = 1"
            )
        splits[style](module, name, share)


def _planned_modules(decoder: nn.Module) -> list[tuple[str, nn.Module, str]]:
    config: Any = decoder.config
    plan = config.base_model_tp_plan
    if not plan:
        raise ValueError(
            f"{type(decoder).__name__}: expected a tensor-parallel plan in {type(config).__name__}, got none; set "
            "placement.target_tensor_parallel = 1"
        )
    styles = {re.compile(re.escape(pattern).replace(r"\*", r"\d+")): style for pattern, style in plan.items()}
    return [
        (name, module, style)
        for name, module in decoder.named_modules()
        for pattern, style in styles.items()
        if pattern.fullmatch(name)
    ]


def _split_rows(module: nn.Linear, name: str, share: _Share) -> None:
    rows = share.of(module.out_features, name)
    module.weight = _frozen(module.weight[rows])
    if module.bias is not None:
        module.bias = _frozen(module.bias[rows])
    module.out_features = module.weight.shape[0]


def _split_columns(module: nn.Linear, name: str, share: _Share) -> None:
    columns = share.of(module.in_features, name)
    module.weight = _frozen(module.weight[:, columns])
    if module.bias is not None and share.rank != 0:
        module.bias = _frozen(torch.zeros_like(module.bias))
    module.in_features = module.weight.shape[1]

    def add_up(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        total = output.clone()
        dist.all_reduce(total, group=share.group)
        return total

    module.register_forward_hook(add_up)


def _split_rows_and_gather(module: nn.Linear, name: str, share: _Share) -> None:
    _split_rows(module, name, share)

    def lay_side_by_side(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        parts = [torch.empty_like(output) for _ in range(share.num_ranks)]
        dist.all_gather(parts, output.contiguous(), group=share.group)
        return torch.cat(parts, dim=-1)

    module.register_forward_hook(lay_side_by_side)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.clone(memory_format=torch.contiguous_format), requires_grad=False)
