"""What a block may depend on, seen from outside: change one row of the input, watch which hidden rows move."""

import pytest
import torch

from tests.drafter.reference import reference_mask
from tests.drafter.small import case_of, document, made_drafter, mixed_case, sliding_shape, small_shape
from tp_dflash.blocks import visible

BLOCK = 4


def _moved_blocks(drafter, case, changed):
    """Which blocks have a hidden row that differs at all between the two inputs."""
    before, after = drafter(*case.inputs()), drafter(*changed.inputs())
    return {i for i in range(len(case.blocks)) if not torch.equal(_block(before, i), _block(after, i))}


def _block(hidden_ND, index):
    return hidden_ND[index * BLOCK : (index + 1) * BLOCK]


def _with_context_moved(case, row):
    features_TF = case.features_TF.clone()
    features_TF[row] += 1.0
    return case.changed(features_TF=features_TF)


def _with_anchor_moved(case, index):
    anchor_embeddings_AD = case.anchor_embeddings_AD.clone()
    anchor_embeddings_AD[index] += 1.0
    return case.changed(anchor_embeddings_AD=anchor_embeddings_AD)


@pytest.mark.parametrize("anchors", [[10, 12], [12, 10], [10, 12, 12], [12, 3, 10, 10]], ids=str)
@pytest.mark.parametrize("padding", [{}, {"num_context": 24, "num_blocks": 6}], ids=["exact", "padded"])
@pytest.mark.parametrize("make_shape", [small_shape, sliding_shape])
def test_a_block_depends_on_context_strictly_before_its_anchor_and_on_no_other_block(anchors, padding, make_shape):
    shape = make_shape()
    drafter = made_drafter(shape)
    case = case_of(shape, document(0, 20), [(0, anchor) for anchor in anchors], **padding)
    for row in (8, 9, 10, 11, 12, 13):
        moved = _moved_blocks(drafter, case, _with_context_moved(case, row))
        assert moved == {i for i, anchor in enumerate(anchors) if row < anchor}
    for index in range(len(anchors)):
        assert _moved_blocks(drafter, case, _with_anchor_moved(case, index)) == {index}


def test_inside_a_block_every_row_sees_every_row_of_full_layers_and_only_earlier_ones_of_causal_layers():
    """The gradient of row i's hidden state towards row j's input tells whether i sees j."""
    for shape, causal in (
        (small_shape(num_layers=1), False),
        (sliding_shape(num_layers=1, layer_types=["sliding_attention"]), True),
        (sliding_shape(num_layers=1, layer_types=["sliding_attention"], sliding_causal=False), False),
    ):
        drafter, case = made_drafter(shape), case_of(shape, document(0, 8), [(0, 6)])
        rows = drafter._block_rows(case.anchor_embeddings_AD, case.mask_embedding_D).detach().requires_grad_()
        drafter._block_rows = lambda *_, rows=rows: rows
        hidden = drafter(*case.inputs())
        for i in range(BLOCK):
            (grad,) = torch.autograd.grad(hidden[i].sum(), rows, retain_graph=True)
            seen = [bool(grad[0, j].abs().sum() > 0) for j in range(BLOCK)]
            assert seen == [j <= i or not causal for j in range(BLOCK)]


@pytest.mark.parametrize("anchor", [17, 19, 0, 1])
@pytest.mark.parametrize("make_shape", [small_shape, sliding_shape])
def test_packed_documents_equal_separate_ones(anchor, make_shape):
    """Documents of 20 and 30 tokens, blocks of 8 that reach past the first one's end, and one at its first token."""
    shape = make_shape(block_size=8)
    drafter = made_drafter(shape)
    blocks = [(0, anchor), (1, 0), (1, 9), (1, 25)]
    packed = case_of(shape, document(0, 20) + document(1, 30), blocks)
    hidden_AB = drafter(*packed.inputs()).unflatten(0, (len(blocks), 8))
    context_TD = drafter._context(packed.features_TF)
    for index, rows in ((0, slice(0, 20)), (1, slice(20, 50))):
        own = [i for i, (owner, _) in enumerate(blocks) if owner == index]
        alone = case_of(shape, document(0, rows.stop - rows.start), [(0, blocks[i][1]) for i in own])
        alone = alone.changed(
            features_TF=packed.features_TF[rows],
            anchor_embeddings_AD=packed.anchor_embeddings_AD[own],
            mask_embedding_D=packed.mask_embedding_D,
        )
        expected_hidden = drafter(*alone.inputs()).unflatten(0, (len(own), 8))
        torch.testing.assert_close(hidden_AB[own], expected_hidden, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(context_TD[rows], drafter._context(alone.features_TF), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [small_shape(), sliding_shape(), sliding_shape(sliding_causal=False)], ids=str)
def test_the_predicate_equals_the_rules_pair_by_pair(shape):
    case = mixed_case(shape)
    num_rows, num_keys = len(case.blocks) * BLOCK, len(case.context) + len(case.blocks) * BLOCK
    rules = {
        "full_attention": {"window": None, "causal": False},
        "sliding_attention": {"window": shape.sliding_window, "causal": shape.sliding_causal},
    }
    for layer_type in set(shape.layer_types):
        mask = visible(
            case.geometry, torch.arange(num_rows)[:, None], torch.arange(num_keys)[None], **rules[layer_type]
        )
        assert torch.equal(mask, reference_mask(shape, case.context, case.blocks, layer_type))
