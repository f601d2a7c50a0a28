"""The network against a dense fp64 reference: hidden rows and every gradient."""

from functools import cache

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.drafter.reference import reference_hidden
from tests.drafter.small import case_of, document, made_drafter, mixed_case, sliding_shape, small_shape
from tp_dflash.blocks import BlockGeometry
from tp_dflash.drafter import Drafter, parameter_shapes
from tp_dflash.drafter import layer as layer_module

SHAPES = {
    "full": small_shape(),
    "sliding": sliding_shape(),
    "sliding_bidirectional": sliding_shape(sliding_causal=False),
    "own_sizes": small_shape(num_heads=3, num_kv_heads=1, head_dim=16, intermediate_size=20, rope_theta=1e6),
    "one_tap": small_shape(target_layer_ids=[5], num_layers=1),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("padding", [{}, {"num_context": 32, "num_blocks": 8}], ids=["exact", "padded"])
def test_hidden_rows_and_gradients_equal_the_reference(shape, padding):
    case = mixed_case(shape, **padding)
    num_rows = len(case.blocks) * shape.block_size
    upstream = torch.randn(num_rows, shape.hidden_size, generator=torch.Generator().manual_seed(1))
    drafter = made_drafter(shape, dtype=torch.float64)
    hidden = drafter(*case.inputs(torch.float64))[:num_rows]
    (hidden * upstream).sum().backward()

    leaves = {name: p.detach().clone().requires_grad_() for name, p in drafter.named_parameters()}
    rows = [row.double() for row in (case.features_TF, case.anchor_embeddings_AD, case.mask_embedding_D)]
    rows = [rows[0][: len(case.context)], rows[1][: len(case.blocks)], rows[2]]
    expected_hidden = reference_hidden(shape, leaves, *rows, case.context, case.blocks)
    (expected_hidden * upstream).sum().backward()

    # Angles are fp32 in the package and fp64 in the reference; all else is fp64.
    torch.testing.assert_close(hidden, expected_hidden, rtol=1e-5, atol=1e-6)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, leaves[name].grad, rtol=1e-5, atol=1e-5, msg=name)


def test_fp32_and_bf16_stay_near_fp64():
    case = mixed_case(small_shape())
    expected = made_drafter(small_shape(), dtype=torch.float64)(*case.inputs(torch.float64))
    errors = {
        dtype: (made_drafter(small_shape(), dtype=dtype)(*case.inputs(dtype)).double() - expected).norm()
        / expected.norm()
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert errors[torch.float32] < 2e-6
    assert errors[torch.bfloat16] < 0.03


def test_positions_far_out_keep_fp32_angles_in_a_bf16_drafter():
    """Angles rounded to bf16 at position 3,000 would be off by whole radians."""
    shape = small_shape()
    shift = 3000
    near = case_of(shape, document(0, 12), [(0, 5), (0, 9)])
    far = case_of(shape, [(0, position + shift) for _, position in near.context], [(0, 5 + shift), (0, 9 + shift)])
    drafter = made_drafter(shape, dtype=torch.bfloat16)
    # Rotary scores depend on differences of positions only, so moving all of them changes nothing.
    difference = (drafter(*near.inputs()) - drafter(*far.inputs())).float().norm()
    assert difference / drafter(*near.inputs()).float().norm() < 0.02


def test_padding_is_finite_and_gives_no_gradient():
    shape = sliding_shape()
    drafter = made_drafter(shape)
    exact, padded = mixed_case(shape), mixed_case(shape, num_context=40, num_blocks=9)
    num_rows = len(exact.blocks) * shape.block_size
    gradients = []
    for case in (exact, padded):
        drafter.zero_grad()
        hidden = drafter(*case.inputs())
        assert torch.isfinite(hidden).all()
        weights = torch.zeros(hidden.shape[0], 1)
        weights[:num_rows] = 1
        (hidden.square() * weights).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in drafter.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_only_padding_gives_a_zero_gradient():
    """An empty pack keeps step with the other ranks: its drafter runs and adds nothing."""
    shape = small_shape()
    drafter = made_drafter(shape)
    case = case_of(shape, [], [], num_context=16, num_blocks=3)
    hidden = drafter(*case.inputs())
    (hidden.sum() * 0.0).backward()
    assert torch.isfinite(hidden).all()
    assert all((p.grad == 0).all() for p in drafter.parameters())


def _hidden_and_gradients(shape, case, **options):
    drafter = made_drafter(shape, **options)
    hidden = drafter(*case.inputs())
    hidden.square().sum().backward()
    return [hidden, *(p.grad for p in drafter.parameters())]


def _assert_same(results, expected):
    for got, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_recomputing_changes_nothing():
    shape, case = sliding_shape(), mixed_case(sliding_shape())
    results = _hidden_and_gradients(shape, case, activation_checkpointing=True)
    _assert_same(results, _hidden_and_gradients(shape, case))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_layer_is_one_graph_shared_by_layers_of_its_type_and_by_later_steps(monkeypatch, recompute):
    graphs = CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    monkeypatch.setattr(
        layer_module, "_compiled", cache(lambda run: torch.compile(run, backend=graphs, dynamic=False, fullgraph=True))
    )
    shape = sliding_shape(num_layers=4)
    options = {"compile_layers": True, "activation_checkpointing": recompute}
    for seed in range(3):
        case = mixed_case(shape, seed=seed)
        _assert_same(_hidden_and_gradients(shape, case, **options), _hidden_and_gradients(shape, case))
    # The first layer has one more: its rows come from frozen embeddings and need no gradient.
    assert graphs.frame_count == len(set(shape.layer_types)) + 1


def _kept_bytes(drafter, case):
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = (tuple(tensor.shape), tensor.dtype)
        return tensor

    own = {p.data_ptr() for p in drafter.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        drafter(*case.inputs(torch.bfloat16))
    return [entry for pointer, entry in kept.items() if pointer not in own]


def test_the_backward_pass_keeps_two_wide_tensors_a_layer_or_none():
    shape = small_shape(intermediate_size=200)
    case = mixed_case(shape)
    for recompute, expected in ((False, 2 * shape.num_layers), (True, 0)):
        drafter = made_drafter(shape, dtype=torch.bfloat16, activation_checkpointing=recompute)
        kept = _kept_bytes(drafter, case)
        wide = [size for size, _ in kept if size[-1] == shape.intermediate_size]
        assert len(wide) == expected


def test_names_and_shapes_are_the_published_ones():
    shape = sliding_shape()
    drafter = Drafter(shape)
    assert {name: tuple(p.shape) for name, p in drafter.named_parameters()} == parameter_shapes(shape)
    assert len(parameter_shapes(shape)) == 11 * shape.num_layers + 3
    assert sum(p.numel() for p in drafter.parameters()) == shape.num_parameters
    assert not list(drafter.buffers())


def test_a_missing_geometry_and_wrong_shapes_are_errors():
    shape = small_shape()
    drafter = made_drafter(shape)
    features, anchors, mask, geometry = mixed_case(shape).inputs()
    with pytest.raises(ValueError, match="expected a geometry, got None"):
        drafter(features, anchors, mask, None)
    with pytest.raises(ValueError, match="features"):
        drafter(features[:, :-1], anchors, mask, geometry)
    with pytest.raises(ValueError, match="anchor embeddings"):
        drafter(features, anchors[:-1], mask, geometry)
    other_block = BlockGeometry.build(*(torch.zeros(5, dtype=torch.int64) for _ in range(4)), block_size=2)
    with pytest.raises(ValueError, match="blocks of 4, got .* blocks of 2"):
        drafter(features[:5], anchors[:5], mask, other_block)
