"""One norm over all ranks in which every parameter counts once, and one clipping factor for all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.training.gradients import ShardedParameters, finish_gradients, global_norm


def _with_gradient(*values: float) -> torch.Tensor:
    parameter = torch.zeros(len(values), requires_grad=True)
    parameter.grad = torch.tensor(values)
    return parameter


def _mixed_norm(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Replicated gradient 3, and a gradient (4, 4) of which each rank holds one part."""
    replicated, sharded = _with_gradient(3.0), _with_gradient(4.0)
    group = dist.group.WORLD
    parts = [ShardedParameters([replicated], group, copies=dist.get_world_size()), ShardedParameters([sharded], group)]
    norm, _bad = finish_gradients(parts, torch.tensor(1.0), max_norm=1.0)
    return norm, replicated.grad, sharded.grad


def test_replicated_parameters_count_once_and_shards_all() -> None:
    for norm, replicated, sharded in run_ranks(_mixed_norm, 2):
        assert norm.item() == pytest.approx(6.403124)
        assert replicated.item() == pytest.approx(3 / 6.403124)
        assert sharded.item() == pytest.approx(4 / 6.403124)


def _many_clipped_steps(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    weight = torch.ones(5)
    for _ in range(50):
        shared = torch.randn(5, generator=torch.Generator().manual_seed(7))
        replicated, own = (
            _with_gradient(*shared.tolist()),
            _with_gradient(*torch.randn(3, generator=generator).tolist()),
        )
        parts = [ShardedParameters([replicated], dist.group.WORLD, 3), ShardedParameters([own], dist.group.WORLD)]
        finish_gradients(parts, torch.tensor(2.0), max_norm=0.5)
        assert replicated.grad is not None
        weight -= 0.1 * replicated.grad
    return weight


def test_replicated_weights_stay_bit_equal_over_clipped_steps() -> None:
    first, *others = run_ranks(_many_clipped_steps, 3)
    for other in others:
        assert torch.equal(first, other)


def test_a_gradient_under_the_limit_is_only_divided() -> None:
    parameter = _with_gradient(3.0, 4.0)
    norm, bad = finish_gradients([ShardedParameters([parameter], None)], torch.tensor(10.0), max_norm=1.0)
    assert (norm.item(), bad.item()) == (0.5, 0.0)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_told(value: float) -> None:
    _, bad = finish_gradients([ShardedParameters([_with_gradient(1.0, value)], None)], torch.tensor(1.0), max_norm=1.0)
    assert bad.item() == 1.0


def test_a_rank_without_gradients_takes_part() -> None:
    parameter = torch.zeros(3, requires_grad=True)
    assert global_norm([ShardedParameters([parameter], None)], torch.device("cpu")).item() == 0
