"""The drafter under FSDP2 on 1, 2, 3 ranks: the same start, rows and gradients as whole on one."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.drafter.small import mixed_case, sliding_shape
from tests.ranks import run_ranks
from tp_dflash.drafter import Drafter, load_parameters, parameter_shapes

SHAPE = sliding_shape()


def _sharded(compute_dtype=torch.float32, **options) -> Drafter:
    """Meta device, shard, storage: the order in which a big drafter is made. No rank ever holds it whole."""
    with torch.device("meta"):
        drafter = Drafter(SHAPE, **options)
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for module in (*drafter.layers, drafter):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return drafter.to_empty(device="cpu")


def _train(rank, seed, options):
    drafter = _sharded(**options)
    drafter.initialise(seed, std=0.3)
    initial = {name: p.full_tensor() for name, p in drafter.named_parameters()}
    case = mixed_case(SHAPE)
    hidden = drafter(*case.inputs())
    hidden.square().sum().backward()
    gradients = {name: p.grad.full_tensor() for name, p in drafter.named_parameters()}
    return {"initial": initial, "hidden": hidden.detach(), "gradients": gradients}


def _whole(seed):
    drafter = Drafter(SHAPE)
    drafter.initialise(seed, std=0.3)
    return drafter


@pytest.mark.parametrize(
    ("world_size", "options"), [(1, {}), (2, {}), (3, {}), (2, {"activation_checkpointing": True})], ids=str
)
def test_sharding_changes_nothing(world_size, options):
    drafter, case = _whole(seed=5), mixed_case(SHAPE)
    expected_hidden = drafter(*case.inputs())
    expected_hidden.square().sum().backward()
    for result in run_ranks(_train, world_size, 5, options):
        for name, parameter in drafter.named_parameters():
            assert torch.equal(result["initial"][name], parameter), name
            torch.testing.assert_close(result["gradients"][name], parameter.grad, rtol=1e-5, atol=1e-5, msg=name)
        torch.testing.assert_close(result["hidden"], expected_hidden.detach(), rtol=1e-5, atol=1e-5)


def _bf16_rows(rank):
    drafter = _sharded(torch.bfloat16)
    drafter.initialise(5, std=0.3)
    return drafter(*mixed_case(SHAPE).inputs()).detach()


def test_mixed_precision_computes_as_a_bf16_drafter_does():
    """The wrapper casts tensor arguments to bf16; rotary angles must not be among them."""
    expected = _whole(seed=5).to(torch.bfloat16)(*mixed_case(SHAPE).inputs())
    for hidden in run_ranks(_bf16_rows, 2):
        assert torch.equal(hidden, expected)


def _loaded(rank, seed):
    drafter = _sharded()
    load_parameters(drafter, {name: p.detach() for name, p in _whole(seed).named_parameters()})
    return {name: p.full_tensor() for name, p in drafter.named_parameters()}


def test_full_values_are_loaded_into_shards():
    expected = dict(_whole(seed=3).named_parameters())
    for result in run_ranks(_loaded, 3, 3):
        assert all(torch.equal(result[name], expected[name]) for name in expected)


def test_initial_values_depend_on_seed_and_name_alone():
    first, again, other = _whole(seed=1), _whole(seed=1), _whole(seed=2)
    values = {name: p.detach() for name, p in first.named_parameters()}
    assert all(torch.equal(values[name], p) for name, p in again.named_parameters())
    matrices = [name for name, size in parameter_shapes(SHAPE).items() if len(size) == 2]
    assert not any(torch.equal(values[name], dict(other.named_parameters())[name]) for name in matrices)
    assert not torch.equal(values["layers.0.mlp.gate_proj.weight"], values["layers.1.mlp.gate_proj.weight"])
    assert all((values[name] == 1).all() for name in values if name not in matrices)
    everything = torch.cat([values[name].flatten() for name in matrices])
    assert abs(float(everything.std()) - 0.3) < 0.01
    assert abs(float(everything.mean())) < 0.01


def test_errors_name_what_is_wrong():
    with torch.device("meta"):
        drafter = Drafter(SHAPE)
    with pytest.raises(ValueError, match="to_empty"):
        drafter.initialise(0)
    values = {name: p.detach() for name, p in _whole(seed=0).named_parameters()}
    missing = {name: value for name, value in values.items() if name != "fc.weight"} | {"extra": torch.ones(1)}
    with pytest.raises(ValueError, match=r"missing \['fc.weight'\], unexpected \['extra'\]"):
        load_parameters(_whole(seed=0), missing)
    with pytest.raises(ValueError, match="expected a value of shape"):
        load_parameters(_whole(seed=0), values | {"fc.weight": torch.ones(3, 3)})
