"""Head shards and embedding rows come row by row from the files, and nothing is ever made up for a missing tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.target.models import VOCAB, edit_config, load_target, make_layout, make_model, save_model
from tp_dflash.config.target import TargetConfig
from tp_dflash.target import read_embedding_rows, read_head_rows, read_target_facts, weight_files

SHARDS = {1: ((0, 67),), 2: ((0, 34), (34, 67)), 3: ((0, 23), (23, 45), (45, 67))}


def _edit_weights(folder: Path, add: dict[str, torch.Tensor], remove: str | None = None) -> None:
    weights = load_file(folder / "model.safetensors")
    if remove is not None:
        del weights[remove]
    added = {key: rows.clone() for key, rows in add.items()}
    save_file(weights | added, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("tp_size", [1, 2, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file_limit", ["5GB", "2KB"])
def test_head_shards_are_the_models_rows(tp_size: int, tied: bool, file_limit: str, tmp_path: Path) -> None:
    model = make_model("qwen3", tie_word_embeddings=tied)
    config = save_model(model, tmp_path, max_shard_size=file_limit)
    assert (tmp_path / "model.safetensors.index.json").exists() == (file_limit == "2KB")
    facts = read_target_facts(config)
    assert facts.tied == tied
    expected = model.lm_head.weight
    assert torch.equal(expected, model.model.embed_tokens.weight) == tied
    shards = [read_head_rows(config, facts, *span) for span in SHARDS[tp_size]]
    assert torch.equal(torch.cat(shards), expected)
    assert torch.equal(read_embedding_rows(config, facts, [66, 0, 5]), model.model.embed_tokens.weight[[66, 0, 5]])


def test_an_untied_head_that_is_missing_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    facts = read_target_facts(config)
    _edit_weights(tmp_path, {}, remove="lm_head.weight")
    for read in (lambda: read_head_rows(config, facts, 0, 5), lambda: read_target_facts(config)):
        with pytest.raises(ValueError, match=r"expected lm_head\.weight in the safetensors files"):
            read()
    edit_config(tmp_path, tie_word_embeddings=True)
    tied = read_target_facts(config)
    assert torch.equal(read_head_rows(config, tied, 3, 5), read_embedding_rows(config, tied, [3, 4]))


def test_only_the_asked_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    facts = read_target_facts(config)
    slices: list[slice] = []
    opened = weight_files.safe_open

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.file = opened(*args, **kwargs)

        def __enter__(self) -> Watched:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def keys(self) -> list[str]:
            return list(self.file.keys())

        def get_slice(self, key: str) -> Any:
            part = self.file.get_slice(key)

            class Rows:
                get_shape = staticmethod(part.get_shape)

                def __getitem__(self, rows: slice) -> torch.Tensor:
                    slices.append(rows)
                    return part[rows]

            return Rows()

    monkeypatch.setattr(weight_files, "safe_open", Watched)
    read_head_rows(config, facts, 10, 30)
    read_embedding_rows(config, facts, [7])
    assert slices == [slice(10, 30), slice(7, 8)]


def test_foreign_tables_are_passed_over(tmp_path: Path) -> None:
    """Multi-token-prediction layers and other modalities bring tables of the same name."""
    model = make_model("qwen3")
    config = save_model(model, tmp_path)
    foreign = torch.zeros(VOCAB, 16)
    _edit_weights(
        tmp_path,
        {
            "mtp.embed_tokens.weight": foreign,
            "model.layers.9.embed_tokens.weight": foreign,
            "talker.lm_head.weight": foreign,
        },
    )
    facts = read_target_facts(config)
    assert torch.equal(read_head_rows(config, facts, 0, VOCAB), model.lm_head.weight)
    assert torch.equal(read_embedding_rows(config, facts, [4]), model.model.embed_tokens.weight[[4]])
    _edit_weights(tmp_path, {"other.lm_head.weight": foreign})
    with pytest.raises(
        ValueError, match=r"expected one key for lm_head\.weight, got \['lm_head\.weight', 'other\.lm_head"
    ):
        read_target_facts(config)


def test_a_decoder_weight_that_is_missing_is_an_error(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    _edit_weights(tmp_path, {}, remove="model.layers.3.mlp.up_proj.weight")
    with pytest.raises(ValueError, match=r"got none for \['layers\.3\.mlp\.up_proj\.weight'\] \(1 in all\)"):
        load_target(config)


def test_config_and_files_must_be_of_one_model(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    edit_config(tmp_path, vocab_size=66)
    with pytest.raises(ValueError, match=r"of shape \(66, 16\) .* got \(67, 16\)"):
        read_target_facts(config)


def test_rows_outside_the_head_are_an_error(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    facts = read_target_facts(config)
    with pytest.raises(ValueError, match=r"within 0\.\.67 of lm_head\.weight, got 60\.\.68"):
        read_head_rows(config, facts, 60, 68)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    make_model("qwen3").config.save_pretrained(tmp_path)
    config = TargetConfig(path=str(tmp_path))
    with pytest.raises(ValueError, match=r"expected safetensors files, got none; .* target\.random_weights"):
        read_target_facts(config)


def test_an_index_whose_files_are_gone_is_refused(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path, max_shard_size="2KB")
    sorted(tmp_path.glob("*.safetensors"))[0].unlink()
    with pytest.raises(ValueError, match=r"expected the files that model\.safetensors\.index\.json lists, got none of"):
        read_target_facts(config)


def test_bfloat16_files_feed_a_float32_target(tmp_path: Path) -> None:
    model: Any = make_model("qwen3")
    model = model.to(torch.bfloat16)
    config = save_model(model, tmp_path)
    facts = read_target_facts(config)
    assert read_head_rows(config, facts, 0, 4).dtype == torch.float32
    batch = load_target(config).features(make_layout(6, 3))
    assert batch.features_TF.dtype == torch.float32
    rounded = load_target(TargetConfig(**(config.model_dump() | {"dtype": "bfloat16"}))).features(make_layout(6, 3))
    assert rounded.features_TF.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.features_TF.float(), batch.features_TF, rtol=0.05, atol=0.05)
