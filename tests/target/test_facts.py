"""Sizes and tokens are read where the model keeps them; what cannot be honoured is refused by name."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from tests.target.models import (
    CPU,
    FULL,
    SIZES,
    edit_config,
    load_target,
    make_layout,
    make_model,
    randomise_norms,
    save_model,
)
from tp_dflash.config.target import TargetConfig
from tp_dflash.drafter.mask_token import check_mask_token
from tp_dflash.target import (
    Target,
    check_target,
    count_decoder_parameters,
    read_embedding_rows,
    read_head_rows,
    read_target_facts,
)

THETA = {"rope_theta": 1e7, "rope_type": "default"}


def _wrapper(folder: Path, model_type: str = "qwen3_5") -> TargetConfig:
    """A multimodal wrapper whose sizes are in text_config only and whose weights lie under model.language_model."""
    torch.manual_seed(0)
    text = SIZES | {
        "rope_parameters": THETA | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 1.0},
        "layer_types": FULL * 5,
    }
    vision: dict[str, Any] = {
        "depth": 5,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_heads": 2,
        "out_hidden_size": 16,
    }
    vision |= {"deepstack_visual_indexes": [0]} if model_type == "qwen3_vl" else {}
    config_class: Any = CONFIG_MAPPING[model_type]
    config = config_class(text_config=text, vision_config=vision, tie_word_embeddings=False)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    return save_model(randomise_norms(model), folder)


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_vl"])
def test_a_multimodal_wrapper_is_its_inner_text_model(model_type: str, tmp_path: Path) -> None:
    config = _wrapper(tmp_path, model_type)
    written = json.loads((tmp_path / "config.json").read_text())
    assert "hidden_size" not in written
    assert "vocab_size" not in written
    facts = read_target_facts(config)
    assert (facts.hidden_size, facts.vocab_size, facts.num_layers, facts.rope_theta) == (16, 67, 5, 1e7)
    assert facts.model_type == model_type
    assert facts.text_model_type == f"{model_type}_text"
    assert not facts.tied
    target, layout = load_target(config), make_layout(9, 4, 12)
    assert not any("visual" in name for name, _ in target.decoder.named_modules())
    full = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = torch.cat([full(input_ids=document.tokens_S[None]).logits[0] for document in layout.pack.documents])
    batch = target.features(layout)
    teacher = batch.teacher_hidden_UD @ read_head_rows(config, facts, 0, facts.vocab_size).T
    assert batch.features_TF.shape == (25, 3 * 16)
    assert (teacher - logits[layout.teacher_row_U]).abs().max() < 1e-4
    assert check_target(target).logits < 1e-4


def test_a_null_text_config_means_that_it_is_not_nested(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    expected = read_target_facts(config)
    features = load_target(config).features(make_layout(9, 4)).features_TF
    edit_config(tmp_path, text_config=None)
    assert read_target_facts(config) == expected
    assert torch.equal(load_target(config).features(make_layout(9, 4)).features_TF, features)


def test_a_wrapper_that_ignores_the_written_sizes_is_refused(tmp_path: Path) -> None:
    """With text_config null, a wrapper's class would silently fall back to the sizes of some published model."""
    config = save_model(make_model("qwen3"), tmp_path)
    edit_config(tmp_path, model_type="qwen3_5", text_config=None)
    with pytest.raises(ValueError, match=r"expected hidden_size = 16, as written, but \w+ uses \d+; write the sizes"):
        read_target_facts(config)


def test_rope_parameters_win_over_a_stale_flat_field(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    edit_config(tmp_path, rope_parameters=THETA, rope_theta=10000.0)
    assert read_target_facts(config).rope_theta == 1e7
    edit_config(tmp_path, rope_parameters=None, rope_theta=20000.0)
    assert read_target_facts(config).rope_theta == 20000.0


def test_layers_of_two_thetas_give_that_of_full_attention() -> None:
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": THETA}
    shape = SIZES | {"model_type": "gemma3_text", "rope_parameters": rope}
    assert read_target_facts(TargetConfig(random_weights=True, shape=shape)).rope_theta == 1e7


def test_missing_facts_are_named_when_they_are_needed() -> None:
    shape = {"model_type": "gpt2", "n_embd": 16, "n_layer": 5, "n_head": 4, "vocab_size": 67, "n_positions": 64}
    facts = read_target_facts(TargetConfig(random_weights=True, shape=shape))
    assert (facts.hidden_size, facts.num_layers, facts.num_heads, facts.max_positions) == (16, 5, 4, 64)
    with pytest.raises(ValueError, match=r"rope_theta in the config, got none; set drafter\.rope_theta"):
        _ = facts.rope_theta
    with pytest.raises(ValueError, match=r"got none; set drafter\.intermediate_size"):
        _ = facts.intermediate_size


def test_special_tokens_come_from_both_configs(tmp_path: Path) -> None:
    config = save_model(make_model("llama"), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9], "pad_token_id": 0}))
    facts = read_target_facts(config)
    assert facts.eos_token_ids == (2, 9)
    assert facts.pad_token_id == 0
    assert facts.special_token_ids == {0, 1, 2, 9}


def test_a_mask_token_must_be_an_existing_row(tmp_path: Path) -> None:
    """67 rows, a tokenizer of 60: row 60 is reserved and fine, row 67 does not exist, pad, bos and eos are taken."""
    config = save_model(make_model("llama"), tmp_path)
    facts = read_target_facts(config)
    check_mask_token(60, facts.vocab_size, facts.special_token_ids)
    assert read_embedding_rows(config, facts, [60, 66]).shape == (2, 16)
    for wrong in (67, -1, 0, 1, 2):
        with pytest.raises(ValueError, match="mask token"):
            check_mask_token(wrong, facts.vocab_size, facts.special_token_ids)
    with pytest.raises(ValueError, match=r"within the target's 67 embedding rows, got \[67\]"):
        read_embedding_rows(config, facts, [5, 67])


@pytest.mark.parametrize("fields", [{"final_logit_softcapping": 30.0}])
def test_bent_logits_are_refused(fields: dict[str, Any]) -> None:
    shape = SIZES | {"model_type": "gemma2"} | fields
    with pytest.raises(ValueError, match=r"final_logit_softcapping = 30\.0, which bends them"):
        read_target_facts(TargetConfig(random_weights=True, shape=shape))


def test_a_head_with_bias_is_refused_by_the_self_check(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected an lm_head without bias"):
        check_target(load_target(save_model(make_model("phi"), tmp_path)))


def test_an_unknown_logit_factor_is_refused_by_the_self_check(tmp_path: Path) -> None:
    """A factor that the facts do not know of must not pass: here it is hidden from them."""
    target = load_target(save_model(make_model("granite"), tmp_path))
    assert target.facts.logit_scale == 1 / 8
    target.facts = dataclasses.replace(target.facts, logit_scale=1.0)
    with pytest.raises(ValueError, match="expected the model's own logits"):
        check_target(target)


def test_an_unknown_embedding_factor_is_refused_by_the_self_check(tmp_path: Path) -> None:
    target = load_target(save_model(make_model("gemma3_text"), tmp_path))
    assert target.facts.embedding_scale == 4.0
    target.facts = dataclasses.replace(target.facts, embedding_scale=1.0)
    with pytest.raises(ValueError, match="expected the model's own embeddings"):
        check_target(target)


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_5_text"])
def test_random_weights_need_no_files(model_type: str) -> None:
    """Deterministic; shards of the head fit together; embeddings and head are those that the target itself uses."""
    shape = SIZES | {"model_type": model_type, "vocab_size": 1500, "tie_word_embeddings": True}
    config = TargetConfig(random_weights=True, shape=shape, dtype="float32")
    facts = read_target_facts(config)
    target, again = Target.load(config, facts, [1, 3], CPU), Target.load(config, facts, [1, 3], CPU)
    batch, layout = target.features(make_layout(9, 7)), make_layout(9, 7)
    assert torch.equal(batch.features_TF, again.features(layout).features_TF)
    assert batch.features_TF.std() > 0
    assert check_target(target).embeddings == 0
    head_VD = read_head_rows(config, facts, 0, 1500)
    parts = [read_head_rows(config, facts, *span) for span in ((0, 500), (500, 1100), (1100, 1500))]
    assert torch.equal(torch.cat(parts), head_VD)
    assert torch.equal(read_embedding_rows(config, facts, [3, 1499]), head_VD[[3, 1499]])
    assert count_decoder_parameters(config) == sum(parameter.numel() for parameter in target.decoder.parameters())


def test_random_weights_may_change_a_folders_shape(tmp_path: Path) -> None:
    make_model("qwen3").config.save_pretrained(tmp_path)
    config = TargetConfig(path=str(tmp_path), random_weights=True, shape={"hidden_size": 32, "layer_types": FULL * 5})
    assert read_target_facts(config).hidden_size == 32
    assert read_target_facts(config).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected a model folder or name, got none"),
        ({"path": "x", "shape": {"hidden_size": 3}}, r"got \['hidden_size'\]; remove target.shape or set"),
        ({"random_weights": True, "shape": {"hidden_size": 3}}, "expected a model folder or name, got none"),
        (
            {"path": "x", "random_weights": True, "shape": {"model_type": "qwen3"}},
            r"expected none beside .* got 'x'; for the model itself --set target.random_weights=false --set 'target.shape=\{\}'",
        ),
        ({"path": "x", "surprise": 1}, "surprise"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TargetConfig(**settings)


def test_an_unknown_folder_is_named() -> None:
    with pytest.raises(ValueError, match=r"target\.path: expected a folder .* got './no such folder': no such folder"):
        read_target_facts(TargetConfig(path="./no such folder"))
    with pytest.raises(ValueError, match="expected a model_type that transformers knows, got 'nonesuch'"):
        read_target_facts(TargetConfig(random_weights=True, shape={"model_type": "nonesuch"}))


def test_the_documented_dry_run_is_a_target() -> None:
    page = (Path(__file__).parents[2] / "docs" / "streams.md").read_text(encoding="utf-8")
    settings = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    facts = read_target_facts(TargetConfig(**settings["target"]))
    assert (facts.hidden_size, facts.num_layers, facts.vocab_size) == (5120, 64, 248320)


def test_a_target_that_states_no_epsilon_is_refused() -> None:
    shape = {"model_type": "opt", "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 32}
    with pytest.raises(ValueError, match=r"opt \(random weights\): expected the norms' epsilon .* write rms_norm_eps"):
        read_target_facts(TargetConfig(random_weights=True, shape=shape))
    shape["rms_norm_eps"] = 3e-5
    assert read_target_facts(TargetConfig(random_weights=True, shape=shape)).rms_norm_eps == 3e-5
