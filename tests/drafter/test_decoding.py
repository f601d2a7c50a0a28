"""Decoding with a cache gives the hidden rows that training gives for the same text and anchors."""

import pytest
import torch

from tests.drafter.small import case_of, document, made_drafter, sliding_shape, small_shape
from tp_dflash.drafter import Drafter, DrafterShape

LENGTHS = torch.tensor([13, 1, 7, 0])


def _prompts(shape: DrafterShape):
    """One pack with a document and an anchor a prompt; the anchor follows the prompt's known rows."""
    context = [row for index, length in enumerate(LENGTHS.tolist()) for row in document(index, length + 1)]
    return case_of(shape, context, [(index, length) for index, length in enumerate(LENGTHS.tolist())])


def _expected(drafter: Drafter, case):
    with torch.no_grad():
        return drafter(*case.inputs(drafter.norm.weight.dtype)).unflatten(0, (len(LENGTHS), -1))


def _features_of(case, prompt: int):
    rows = [row for row, (owner, _) in enumerate(case.context) if owner == prompt]
    return case.features_TF[rows[: LENGTHS[prompt]]]


def _extend(drafter, cache, case, schedule):
    """Feed every prompt's rows in the given portions: schedule[step][prompt] rows at a time, right-padded."""
    start_P = torch.zeros_like(LENGTHS)
    for count_P in torch.tensor(schedule):
        longest = int(count_P.max())
        features_PSF = torch.full((len(LENGTHS), longest, case.features_TF.shape[1]), 7.0)
        for prompt, (start, count) in enumerate(zip(start_P.tolist(), count_P.tolist(), strict=True)):
            features_PSF[prompt, :count] = _features_of(case, prompt)[start : start + count]
        drafter.extend(cache, features_PSF.to(drafter.norm.weight.dtype), count_P)
        start_P += count_P
    assert torch.equal(start_P, LENGTHS)
    assert torch.equal(cache.length_P, LENGTHS)


@pytest.mark.parametrize(
    "schedule",
    [[[13, 1, 7, 0]], [[4, 1, 7, 0], [9, 0, 0, 0]], [[1, 0, 3, 0], [5, 1, 2, 0], [0, 0, 1, 0], [7, 0, 1, 0]]],
    ids=["at_once", "two_steps", "uneven_steps"],
)
@pytest.mark.parametrize("shape", [small_shape(), sliding_shape(), sliding_shape(sliding_causal=False)], ids=str)
def test_drafting_several_prompts_equals_training_on_the_same_rows(shape, schedule):
    drafter, case = made_drafter(shape), _prompts(shape)
    cache = drafter.new_cache(len(LENGTHS), torch.device("cpu"))
    _extend(drafter, cache, case, schedule)
    hidden_PBD = drafter.draft(cache, case.anchor_embeddings_AD, case.mask_embedding_D)
    torch.testing.assert_close(hidden_PBD, _expected(drafter, case), rtol=1e-5, atol=1e-5)


def test_drafting_leaves_the_cache_as_it_was():
    drafter = made_drafter(small_shape())
    case = _prompts(small_shape())
    cache = drafter.new_cache(len(LENGTHS), torch.device("cpu"))
    _extend(drafter, cache, case, [LENGTHS.tolist()])
    first = drafter.draft(cache, case.anchor_embeddings_AD, case.mask_embedding_D)
    assert torch.equal(drafter.draft(cache, case.anchor_embeddings_AD, case.mask_embedding_D), first)


@pytest.mark.parametrize("chosen", [[2, 0], [3], [1, 3, 0]], ids=str)
def test_prompts_that_are_done_can_leave_the_cache(chosen):
    shape = sliding_shape()
    drafter, case = made_drafter(shape), _prompts(shape)
    cache = drafter.new_cache(len(LENGTHS), torch.device("cpu"))
    _extend(drafter, cache, case, [LENGTHS.tolist()])
    cache.select(torch.tensor(chosen))
    hidden_PBD = drafter.draft(cache, case.anchor_embeddings_AD[chosen], case.mask_embedding_D)
    torch.testing.assert_close(hidden_PBD, _expected(drafter, case)[chosen], rtol=1e-5, atol=1e-5)


def test_a_bf16_drafter_keeps_bf16_rows():
    shape = small_shape()
    drafter, case = made_drafter(shape, dtype=torch.bfloat16), _prompts(shape)
    cache = drafter.new_cache(len(LENGTHS), torch.device("cpu"))
    _extend(drafter, cache, case, [LENGTHS.tolist()])
    assert cache.layer(0, torch.bfloat16)[0].dtype == torch.bfloat16
    hidden_PBD = drafter.draft(cache, case.anchor_embeddings_AD, case.mask_embedding_D)
    assert hidden_PBD.dtype == torch.bfloat16
    difference = (hidden_PBD - _expected(drafter, case)).float().norm()
    assert difference / _expected(drafter, case).float().norm() < 0.02


def test_drafting_before_any_context_is_known():
    shape = small_shape()
    drafter = made_drafter(shape)
    case = case_of(shape, [], [(0, 0), (1, 0)])
    cache = drafter.new_cache(2, torch.device("cpu"))
    hidden_PBD = drafter.draft(cache, case.anchor_embeddings_AD, case.mask_embedding_D)
    expected = drafter(*case.inputs()).unflatten(0, (2, -1))
    torch.testing.assert_close(hidden_PBD, expected, rtol=1e-5, atol=1e-5)
