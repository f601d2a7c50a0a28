"""What the planner says of configurations that fit, do not fit, or cannot be."""

from __future__ import annotations

import pytest

from tests.planner.plans import COLOCATED, CONFIGS, verdict_of
from tp_dflash.config.load import ConfigError, load_config
from tp_dflash.placement import PlacementError
from tp_dflash.planner import parse_bytes, plan_text


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("qwen*.toml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_fits_its_gpus(path) -> None:  # type: ignore[no-untyped-def]
    load_config(path)
    verdict = verdict_of(path.stem, nodes=2 if "2x8" in path.stem else 1)
    assert verdict.fits
    text = plan_text(verdict)
    for role in verdict.roles:
        assert all(line.arithmetic in text for line in role.lines)


def test_remedies_save_what_they_say_and_together_they_fit() -> None:
    verdict = verdict_of(settings=COLOCATED, memory="70GiB")
    assert not verdict.fits
    names = [tried.remedy.name for tried in verdict.tried]
    assert names.index("activation checkpointing") < names.index("smaller packs") < names.index("fewer anchors")
    for tried in verdict.tried:
        settings = [
            f"{key}={value}".replace("True", "true").replace("False", "false")
            for key, value in tried.remedy.changes.items()
        ]
        changed = verdict_of(settings=(*COLOCATED, *settings), memory="70GiB")
        assert verdict.fullest.peak_bytes - changed.fullest.peak_bytes == tried.saving > 0
        assert changed.fits == tried.fits
    assert verdict.together
    merged = {key: value for remedy in verdict.together for key, value in remedy.changes.items()}
    settings = [f"{key}={value}".replace("True", "true").replace("False", "false") for key, value in merged.items()]
    assert verdict_of(settings=(*COLOCATED, *settings), memory="70GiB").fits


def test_nothing_helps_a_target_that_is_larger_than_the_gpu() -> None:
    verdict = verdict_of(memory="8GiB")
    assert verdict.together is None
    assert verdict.largest_anchors == 0
    assert "No combination" in plan_text(verdict)


def test_the_largest_number_of_anchors_is_the_last_that_fits() -> None:
    verdict = verdict_of(settings=COLOCATED)
    most = verdict.largest_anchors
    assert verdict_of(settings=(*COLOCATED, f"anchors.per_pack={most}")).fits
    assert not verdict_of(settings=(*COLOCATED, f"anchors.per_pack={most + 1}")).fits


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("anchors.per_pack=65536", "fewer anchors than the 65536 tokens"),
        ("drafter.mask_token_id=248320", "mask token"),
        ("drafter.num_kv_heads=7", "whole groups"),
        ("drafter.target_layer_ids=[1, 63]", "0..62"),
        ("target.shape.num_attention_heads=0", "num_attention_heads"),
        ("target.shape.num_key_value_heads=7", "whole groups"),
        ("target.shape.hidden_size=-5", "hidden_size"),
        ("target.shape.max_position_embeddings=1000", "1000 positions"),
        ("training.head_chunk_rows=8", "at least one block"),
    ],
)
def test_wrong_or_impossible_shapes_are_errors(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        verdict_of(settings=(setting,))


def test_a_placement_that_cannot_be_is_an_error() -> None:
    with pytest.raises(PlacementError, match="tensor_parallel"):
        verdict_of(settings=("placement.tensor_parallel=3",))
    with pytest.raises(ConfigError, match="per_pack"):
        verdict_of(settings=("anchors.per_pack=0",))


@pytest.mark.parametrize(
    ("text", "expected"), [("95GiB", 95 * 2**30), ("80 GB", 80 * 10**9), ("1.5TiB", 3 * 2**39), ("1024 B", 1024)]
)
def test_amounts_of_memory_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "-3GiB", "0GiB", "95GiX", "GiB", "80"])
def test_no_amount_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="such as 95GiB"):
        parse_bytes(text)
