"""What a run's drafter section and a target's sizes make of each other, and which combinations are refused."""

import pytest
from pydantic import ValidationError

from tests.drafter.small import Sizes, small_shape
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.drafter import DrafterShape, check_mask_token, default_layer_ids, resolve_layer_ids


@pytest.mark.parametrize(
    ("num_target_layers", "num_taps", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (64, 5, (1, 16, 31, 46, 61)), (28, 1, (14,)), (30, 3, (1, 14, 27))],
)
def test_default_layer_ids(num_target_layers, num_taps, expected):
    assert default_layer_ids(num_target_layers, num_taps) == expected
    assert resolve_layer_ids(None, num_target_layers, num_taps) == expected


@pytest.mark.parametrize(
    ("ids", "num_target_layers", "num_taps"),
    [([1, 11], 12, 2), ([-1, 3], 12, 2), ([3, 3], 12, 2), ([5, 3], 12, 2), (None, 5, 5), (None, 3, 4), ([], 12, 2)],
)
def test_layer_ids_out_of_range_repeated_or_unsorted_are_refused(ids, num_target_layers, num_taps):
    with pytest.raises(ValueError, match=r"drafter\.target_layer_ids"):
        resolve_layer_ids(ids, num_target_layers, num_taps)


def test_ids_may_reach_from_the_first_to_the_second_last_layer():
    assert resolve_layer_ids([0, 10], 12, 5) == (0, 10)


def test_unset_sizes_are_the_targets():
    shape = DrafterShape.of(DrafterConfig(mask_token_id=60), Sizes(num_layers=36, rope_theta=1e7))
    sizes = Sizes()
    for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size"):
        assert vars(shape)[name] == vars(sizes)[name]
    assert (shape.rope_theta, shape.rms_norm_eps, shape.max_positions) == (1e7, 1e-6, 4096)
    assert (shape.num_layers, shape.target_layer_ids, shape.num_target_layers) == (5, (1, 9, 17, 25, 33), 36)
    assert shape.feature_size == 5 * 24
    assert (shape.sliding_window, set(shape.layer_types)) == (None, {"full_attention"})


def test_sizes_that_are_set_win():
    shape = small_shape(intermediate_size=50, num_heads=6, num_kv_heads=3, head_dim=16, rope_theta=5e5)
    assert (shape.intermediate_size, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (50, 6, 3, 16)
    assert (shape.query_size, shape.kv_size, shape.rope_theta) == (96, 48, 5e5)


def test_with_a_window_all_layers_but_the_last_slide_unless_told():
    assert small_shape(num_layers=3, sliding_window=8).layer_types == (*["sliding_attention"] * 2, "full_attention")
    told = ["full_attention", "sliding_attention"]
    assert small_shape(sliding_window=8, layer_types=told).layer_types == tuple(told)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_layer_ids": [4, 2]}, "target_layer_ids"),
        ({"target_layer_ids": [2, 2]}, "target_layer_ids"),
        ({"target_layer_ids": [-1]}, "target_layer_ids"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 5}, "sliding_window"),
        ({"layer_types": ["full_attention"] * 5, "sliding_window": 9}, "sliding_window"),
        ({"num_layers": 1, "sliding_window": 9}, "sliding_window"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"block_size": 1}, "block_size"),
        ({"mask_token_id": -1}, "mask_token_id"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_impossible_sections_are_refused_by_key(settings, message):
    with pytest.raises(ValidationError, match=message):
        DrafterConfig(**({"mask_token_id": 60} | settings))


def test_the_mask_token_has_no_default():
    with pytest.raises(ValidationError, match="mask_token_id"):
        DrafterConfig()


def test_a_shape_that_the_target_does_not_allow_is_refused():
    with pytest.raises(ValueError, match=r"drafter\.num_kv_heads"):
        small_shape(num_kv_heads=3)


def test_mask_token_in_a_reserved_row_is_accepted():
    """Embedding of 151,936 rows, tokenizer of 151,669 tokens: the first row past the tokenizer exists."""
    check_mask_token(151_669, 151_936, {151_643, 151_645})
    check_mask_token(151_935, 151_936, [])


@pytest.mark.parametrize(
    ("mask_token_id", "message"),
    [
        (151_936, "151936 embedding rows, got 151936"),
        (-1, "got -1"),
        (151_643, r"otherwise unused mask token, got 151643"),
        (151_644, r"one of the target's padding, begin and end tokens \[151643, 151644, 151645\]"),
        (151_645, r"otherwise unused mask token, got 151645"),
    ],
)
def test_mask_token_without_a_row_or_with_another_meaning_is_refused(mask_token_id, message):
    with pytest.raises(ValueError, match=message):
        check_mask_token(mask_token_id, 151_936, {151_643, 151_644, 151_645})


def test_an_embedding_as_long_as_the_tokenizer_has_no_spare_row():
    with pytest.raises(ValueError, match=r"drafter\.mask_token_id"):
        check_mask_token(49_152, 49_152, {2})
