"""The attention backends against each other: flex_attention, masked SDPA, and SDPA in smaller or larger chunks."""

from functools import partial

import pytest
import torch

from tests.drafter.small import made_drafter, mixed_case, sliding_shape, small_shape
from tp_dflash.drafter.flex import FlexVisibility
from tp_dflash.drafter.sdpa import SdpaVisibility

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def _attention_inputs(geometry, heads=4, kv_heads=2, head_dim=16, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    num_rows, num_keys = geometry.anchor_position_N.shape[0], geometry.document_M.shape[0]
    sizes = ((1, heads, num_rows, head_dim), (1, kv_heads, num_keys, head_dim), (1, kv_heads, num_keys, head_dim))
    return [torch.randn(size, generator=generator).to(device).requires_grad_() for size in sizes]


@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)], ids=str)
@pytest.mark.parametrize("rule", [(None, False), (5, True), (5, False), (1, True)], ids=str)
@pytest.mark.parametrize("padding", [{}, {"num_context": 150, "num_blocks": 40}], ids=["exact", "padded"])
def test_flex_equals_sdpa(rule, heads, padding):
    geometry = mixed_case(small_shape(), **padding).geometry
    window, causal = rule
    inputs = _attention_inputs(geometry, *heads)
    expected = SdpaVisibility.packed(geometry, window=window, causal=causal)(*inputs)
    result = FlexVisibility(geometry, window=window, causal=causal)(*(row.detach() for row in inputs))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make_shape", [small_shape, sliding_shape])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_drafter_gives_the_same_rows_with_either_backend(make_shape, device):
    case = mixed_case(make_shape(), num_context=150, num_blocks=40)
    rows = [*(row.to(device) for row in case.inputs()[:3]), case.geometry.to(torch.device(device))]
    hidden = {}
    for attention in ("sdpa", "flex"):
        with torch.no_grad():
            hidden[attention] = made_drafter(make_shape(), attention=attention).to(device)(*rows)
    torch.testing.assert_close(hidden["flex"], hidden["sdpa"], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_compiled_flex_gradients_equal_sdpa_and_later_steps_do_not_recompile():
    device = torch.device("cuda")
    make = partial(mixed_case, sliding_shape(), num_context=256, num_blocks=48)
    for seed in range(3):
        geometry = make(seed=seed).geometry.to(device)
        gradients = []
        for visibility in (FlexVisibility, SdpaVisibility.packed):
            inputs = _attention_inputs(geometry, device="cuda")
            with torch.compiler.set_stance("default" if seed == 0 else "fail_on_recompile"):
                visibility(geometry, window=5, causal=True)(*inputs).square().sum().backward()
            gradients.append([row.grad for row in inputs])
        for got, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 20, 1000])
def test_the_chunk_size_of_sdpa_does_not_matter(chunk_rows):
    geometry = mixed_case(small_shape(), num_context=30, num_blocks=7).geometry
    results = []
    for rows in (chunk_rows, 256):
        inputs = _attention_inputs(geometry)
        mixed = SdpaVisibility.packed(geometry, window=5, causal=True, chunk_rows=rows)(*inputs)
        mixed.square().sum().backward()
        results.append([mixed, *(row.grad for row in inputs)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_the_mask_of_flex_is_made_without_recompiling_for_a_new_pack(monkeypatch):
    """Graphs are counted with a backend that only runs them: the count must not grow with packs of one shape."""
    from functools import cache

    from torch._dynamo.testing import CompileCounter

    from tp_dflash.drafter import flex

    graphs = CompileCounter()
    torch.compiler.reset()
    compiled = cache(lambda function: torch.compile(function, backend=graphs, dynamic=False))
    monkeypatch.setattr(flex, "compiled_on_gpu", lambda function, device, dynamic: compiled(function))
    shape = sliding_shape()
    drafter, counts = made_drafter(shape, attention="flex"), []
    for seed in range(3):
        case = mixed_case(shape, seed=seed, num_context=40, num_blocks=8)
        with torch.no_grad():
            hidden = drafter(*case.inputs())
            expected = made_drafter(shape, attention="sdpa")(*case.inputs())
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
        counts.append(graphs.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3
