"""Folders that are written whole or not at all, and folders that must not be taken for a drafter."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.formats.folders import trained, write_target
from tp_dflash.formats import PublishedDrafter, read_published, read_zlab, write_zlab
from tp_dflash.formats.new_folder import new_folder


@pytest.fixture
def export(tmp_path):
    _, published = trained(write_target(tmp_path / "target"))
    write_zlab(tmp_path / "export", published)
    return tmp_path / "export"


def _edit(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        config.pop(name) if value is None else config.update({name: value})
    path.write_text(json.dumps(config))


def test_a_failed_write_leaves_the_earlier_export_and_no_litter(export):
    before = {path.name: path.read_bytes() for path in export.iterdir()}
    beside = sorted(path.name for path in export.parent.iterdir())
    with pytest.raises(TypeError), new_folder(export) as fresh:
        (fresh / "config.json").write_text(None)
    assert {path.name: path.read_bytes() for path in export.iterdir()} == before
    assert sorted(path.name for path in export.parent.iterdir()) == beside


def test_an_export_replaces_an_earlier_one_but_nothing_else(export, tmp_path):
    _, other = trained(write_target(tmp_path / "other"), block_size=8)
    write_zlab(export, other)
    assert read_zlab(export).shape.block_size == 8
    foreign = tmp_path / "notes"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="notes"):
        write_zlab(foreign, other)
    assert (foreign / "notes.txt").read_text() == "keep me"


def test_files_can_be_read_by_everyone(export):
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in export.iterdir())
    assert export.stat().st_mode & 0o055 == 0o055


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": None}, "rope_type"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [1, 2, 3]}}, "mrope_section"),
        ({"rope_theta": 10000.0}, "one rope_theta"),
        ({"block_size": 8}, "one block_size"),
        ({"num_target_layers": None}, "num_target_layers"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, r"layers\.2\..* is missing"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, r"layers\.1\..* is unexpected"),
        ({"intermediate_size": 44}, r"gate_proj\.weight is \(40, 24\) in place of \(44, 24\)"),
    ],
    ids=str,
)
def test_a_config_that_the_network_cannot_honour_is_an_error_by_name(export, changes, message):
    _edit(export, **changes)
    with pytest.raises(ValueError, match=message):
        read_published(export)


def test_flags_of_other_drafters_are_not_ignored(export):
    for flag, message in (({"causal": True}, "causal = true"), ({"use_swa": True}, "use_swa")):
        config = json.loads((export / "config.json").read_text())
        _edit(export, dflash_config=config["dflash_config"] | flag)
        with pytest.raises(ValueError, match=message):
            read_published(export)


def test_sparse_configs_of_others_are_read(export):
    """Fields that older folders lack have one meaning when absent."""
    expected = read_zlab(export)
    config = json.loads((export / "config.json").read_text())
    inner = {name: config["dflash_config"][name] for name in ("mask_token_id", "target_layer_ids")}
    _edit(export, dflash_config=inner, layer_types=None, rope_parameters=None, use_sliding_window=None)
    (export / "tp_dflash.json").unlink()
    assert read_published(export).shape == expected.shape
    _edit(
        export,
        rope_theta=None,
        rope_parameters={"rope_theta": 1e7},
        block_size=None,
        dflash_config=inner | {"block_size": 4},
    )
    assert read_published(export).shape == expected.shape


def test_weights_cut_short_or_gone_are_errors_by_name(export):
    file = export / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="complete safetensors"):
        read_published(export)
    file.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        read_published(export)


def test_missing_renamed_and_mixed_tensors_are_listed(export):
    file = export / "model.safetensors"
    tensors = load_file(file)
    tensors["layers.0.self_attn.query.weight"] = tensors.pop("layers.0.self_attn.q_proj.weight")
    save_file(tensors, file)
    with pytest.raises(
        ValueError, match=r"q_proj\.weight is missing; layers\.0\.self_attn\.query\.weight is unexpected"
    ):
        read_published(export)


def test_tensors_of_several_dtypes_are_refused(tmp_path):
    _, published = trained(write_target(tmp_path / "target"))
    tensors = dict(published.tensors) | {"norm.weight": published.tensors["norm.weight"].to(torch.bfloat16)}
    with pytest.raises(ValueError, match="all tensors in one of"):
        PublishedDrafter(published.shape, tensors)


def test_a_folder_without_a_drafter_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        read_published(tmp_path)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ValueError, match="expected JSON"):
        read_published(tmp_path)
