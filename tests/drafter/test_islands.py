"""What GPUs compile inside a layer, compiled here with a backend that only runs the graphs: the same numbers, few graphs."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from tests.drafter.small import made_drafter, mixed_case, sliding_shape
from tp_dflash.drafter import compiled as compiled_module
from tp_dflash.drafter import norm as norm_module
from tp_dflash.drafter import rotary as rotary_module
from tp_dflash.drafter.projections import projected


def _gradients(seed: int) -> list[torch.Tensor]:
    shape = sliding_shape(num_layers=3)
    drafter = made_drafter(shape)
    hidden = drafter(*mixed_case(shape, seed=seed, num_context=40, num_blocks=8).inputs())
    hidden.square().sum().backward()
    return [hidden, *(parameter.grad for parameter in drafter.parameters())]


def test_compiled_norms_and_turns_give_the_same_gradients_without_recompiling(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [_gradients(seed) for seed in range(3)]
    graphs = CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    compiled = cache(lambda function, dynamic: torch.compile(function, backend=graphs, dynamic=dynamic, fullgraph=True))
    monkeypatch.setattr(norm_module, "compiled_in_training", lambda function, device: compiled(function, False))
    monkeypatch.setattr(rotary_module, "compiled_on_gpu", lambda function, device, dynamic: compiled(function, dynamic))
    counts = []
    for seed in range(3):
        for got, wanted in zip(_gradients(seed), expected[seed], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        counts.append(graphs.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_decoding_is_not_compiled_shape_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(compiled_module, "compiled_on_gpu", lambda function, device, dynamic: asked.append(dynamic))
    with torch.no_grad():
        assert compiled_module.compiled_in_training(len, torch.device("cuda")) is len
    compiled_module.compiled_in_training(len, torch.device("cuda"))
    assert asked == [False]


@pytest.mark.parametrize("frozen_rows", [False, True])
def test_projections_are_linear_layers_of_the_same_rows(frozen_rows: bool) -> None:
    torch.manual_seed(0)
    rows = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=not frozen_rows)
    weights = [torch.randn(size, 6, dtype=torch.float64, requires_grad=True) for size in (4, 3, 7)]
    assert torch.autograd.gradcheck(lambda *inputs: projected(*inputs), (rows, *weights))
    layers = [nn.functional.linear(rows, weight) for weight in weights]
    for got, expected in zip(projected(rows, *weights), layers, strict=True):
        assert torch.equal(got, expected)
