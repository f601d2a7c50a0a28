"""Masters stay fp32, a skipped step leaves no trace, and the rate depends on the step alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.training.muon import Muon, orthogonalised
from tp_dflash.training.optimizer import DrafterOptimizer, learning_rate

CONFIG = OptimizerConfig(learning_rate=1.0, warmup_ratio=0.2, final_learning_rate_ratio=0.1)


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.RMSNorm(4))


def _give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_warm_up_then_cosine() -> None:
    rates = [learning_rate(step, 20, CONFIG) for step in range(20)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[4:]))


@pytest.mark.parametrize("total", [1, 2, 3, 1000])
def test_every_length_of_run_has_rates(total: int) -> None:
    rates = [learning_rate(step, total, CONFIG) for step in range(total)]
    assert all(0 < rate <= 1 for rate in rates)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_skipped_step_leaves_weights_moments_and_counts(name: str) -> None:
    taken, skipping = _module(), _module()
    optimizers = [DrafterOptimizer(module, OptimizerConfig(name=name)) for module in (taken, skipping)]
    go, skip = torch.zeros(()), torch.ones(())
    for seed in (1, 2):
        for module, optimizer in zip((taken, skipping), optimizers, strict=True):
            _give_gradients(module, seed)
            optimizer.step(0.1, go)
        _give_gradients(skipping, 99)
        next(skipping.parameters()).grad[0] = float("nan")
        optimizers[1].step(0.1, skip)
    assert [optimizer.updates for optimizer in optimizers] == [2, 2]
    for one, other in zip(taken.parameters(), skipping.parameters(), strict=True):
        assert torch.equal(one, other)
        for kind, moment in optimizers[0].moments(one).items():
            assert torch.equal(moment, optimizers[1].moments(other)[kind])


def test_small_updates_of_norm_weights_add_up() -> None:
    """100 updates of about -6e-4 on a weight of 1.0: 0.94 in fp32 masters, 1.0 for ever in bf16."""
    norm = nn.RMSNorm(1)
    optimizer = DrafterOptimizer(norm, OptimizerConfig(learning_rate=6e-4))
    for _ in range(100):
        norm.weight.grad = torch.ones(1)
        optimizer.step(6e-4, torch.zeros(()))
    assert norm.weight.item() == pytest.approx(0.94, abs=1e-4)


def test_low_precision_masters_are_refused() -> None:
    with pytest.raises(ValueError, match="fp32 master weights"):
        DrafterOptimizer(_module().to(torch.bfloat16), OptimizerConfig())


def test_norm_weights_do_not_decay() -> None:
    module = _module()
    optimizer = DrafterOptimizer(module, OptimizerConfig(weight_decay=0.5))
    before = [parameter.clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1, torch.zeros(()))
    matrix, vector = list(module.parameters())
    assert torch.allclose(matrix, before[0] * 0.95)
    assert torch.equal(vector, before[1])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_muon_moves_a_matrix_as_torchs_own(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}
    reference = torch.optim.Muon([theirs], nesterov=True, adjust_lr_fn="match_rms_adamw", **options)
    muon = Muon([ours], **options)
    for _ in range(3):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step()
        reference.step()
    # Both iterate in bf16, in another order of operations.
    assert float((ours - 1).detach().abs().max()) > 0.05
    torch.testing.assert_close(ours, theirs, rtol=0, atol=4e-3)


@pytest.mark.parametrize("most_numbers", [1, 48, 1000], ids=["one by one", "in pairs", "all at once"])
def test_a_matrix_moves_alike_whatever_moves_with_it(most_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tp_dflash.training.muon._MOST_NUMBERS", most_numbers)
    generator = torch.Generator().manual_seed(3)
    shapes = [(6, 4), (4, 6), (6, 4), (6, 4), (4, 6)]
    together, alone = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2}
    steppers = [Muon(together, **options), *(Muon([matrix], **options) for matrix in alone)]
    for _ in range(2):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for stepper in steppers:
            stepper.step()
    for one, other in zip(together, alone, strict=True):
        assert float((one - 1).detach().abs().max()) > 0.05
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_directions_are_orthogonalised_whatever_their_shape() -> None:
    torch.manual_seed(2)
    for shape in ((3, 8, 5), (2, 5, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.25


def test_muon_refuses_vectors() -> None:
    with pytest.raises(ValueError, match="expected matrices"):
        Muon([nn.Parameter(torch.ones(3))], lr=1.0, momentum=0.9, weight_decay=0.0)
