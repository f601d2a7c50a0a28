"""Spread the drafter's parameters, gradients and moments over drafter ranks: all of them, or each node's own (FSDP2, HSDP).

In: a drafter on the meta device or on this rank's device, the mesh of all drafter ranks. Out: the same module whose
parameters are fp32 shards; its matrix products see gathered copies in the compute dtype, and gradients are summed, never
averaged, in fp32. What the sum is divided by is the step's one global weight, known only when all ranks have spoken.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tp_dflash.parallel import Groups
from tp_dflash.placement import Placement


def drafter_mesh(placement: Placement, groups: Groups, device: torch.device) -> DeviceMesh:
    """All drafter ranks: one axis of shards, or where there are copies an axis of copies and one of shards."""
    assert groups.shards is not None
    if groups.replicas is None:
        return DeviceMesh.from_group([groups.shards], device.type, mesh=placement.drafters, mesh_dim_names=("shards",))
    return DeviceMesh.from_group(
        [groups.replicas, groups.shards],
        device.type,
        mesh=torch.tensor(placement.shard_groups),
        mesh_dim_names=("copies", "shards"),
    )


def shard_drafter(
    drafter: nn.Module,
    layers: list[nn.Module],
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
) -> None:
    """Shard ``layers`` one by one and then the rest of ``drafter``, in place, over the last axis of ``mesh``.

    all-gather of parameters <-> reduce-scatter (sum) of gradients, then, where there are copies, their all-reduce (sum), which
    leaves the same bits in all copies. A mesh of one rank takes the same path.
    """
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
