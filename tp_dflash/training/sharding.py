"""Spread the drafter's parameters, gradients and moments over all drafter ranks (FSDP2).

In: a drafter on the meta device or on this rank's device, the group of all drafter ranks. Out: the same module whose
parameters are fp32 shards; its matrix products see gathered copies in the compute dtype, and gradients are summed, never
averaged, in fp32. What the sum is divided by is the step's one global weight, known only when all ranks have spoken.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard_drafter(
    drafter: nn.Module, layers: list[nn.Module], group: ProcessGroup, device: torch.device, compute_dtype: torch.dtype
) -> None:
    """Shard ``layers`` one by one and then the rest of ``drafter``, in place, over the ranks of ``group``.

    all-gather of parameters <-> reduce-scatter (sum) of gradients. A group of one takes the same path.
    """
    mesh = DeviceMesh.from_group(group, device.type)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # The root's few parameters (fc and two norms) are needed at both ends of the forward pass: gather them once.
    fully_shard(drafter, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in drafter.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for current, following in itertools.pairwise(layers):
        assert isinstance(current, FSDPModule)
        assert isinstance(following, FSDPModule)
        current.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([current])
