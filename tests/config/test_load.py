"""Mistakes in a configuration name the key, what was got and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tp_dflash.config.load import ConfigError, dump_config, load_config, parse_config

MINIMAL = """
[target]
path = "models/some"
[drafter]
mask_token_id = 7
[data]
train = ["train.jsonl"]
"""


def _write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_defaults_and_overrides(tmp_path: Path) -> None:
    config = load_config(
        _write(tmp_path),
        ["drafter.block_size=8", "placement.drafter=0-1", "optimizer.betas=[0.8, 0.9]", "objective.ce=1"],
    )
    assert config.drafter.block_size == 8
    assert config.placement.drafter == "0-1"
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.objective.ce == 1.0
    assert config.training.epochs == 6


@pytest.mark.parametrize(
    "path", ["chats.jsonl", "data/**/*.json.gz", "it's here/a[1].jsonl", "../a-b_c.parquet", "2024.1.1"]
)
def test_paths_need_no_quotes(tmp_path: Path, path: str) -> None:
    assert load_config(_write(tmp_path), [f"data.train={path}"]).data.train[0].path == path


def test_a_single_gpu_may_be_a_number(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path), ["placement.target=0", "placement.drafter=1", "placement.head=none"])
    assert (config.placement.target, config.placement.drafter, config.placement.head) == ("0", "1", None)


def test_a_dumped_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path), ["drafter.target_layer_ids=[1, 3]"])
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "drafter.blok_size=16",
            r"drafter.blok_size: expected a known key, got 'blok_size'; did you mean 'block_size'",
        ),
        ("drafer.block_size=16", r"drafer: expected a known key.*did you mean 'drafter'"),
        ('drafter.block_size="16"', r"drafter.block_size: .*valid integer, got '16'"),
        ("drafter.block_size=true", r"drafter.block_size: .*got True"),
        ("drafter.block_size=16.5", r"drafter.block_size: .*got 16.5"),
        ("anchors.per_pack=0", r"anchors.per_pack: .*greater than or equal to 1, got 0"),
        ("anchors.per_pack=8192", r"anchors.per_pack: expected fewer anchors than the 8192 tokens of a pack, got 8192"),
        ("optimizer.learning_rate=nan", r"optimizer.learning_rate"),
        ("training.compute_dtype=float16", r"training.compute_dtype: .*'bfloat16' or 'float32', got 'float16'"),
        ("training.head_chunk_rows=3", r"training.head_chunk_rows: expected at least one block of 16 rows, got 3"),
        ("drafter.block_size", r"expected section.key=value"),
        ("=4", r"expected section.key=value"),
        ("target.path.x=4", r"expected a section at 'path', got a value"),
        ("data.train=[", r"--set data.train=\[: expected a TOML value, got '\[': "),
        ("data.train=['a.jsonl'", r"--set data.train=.*expected a TOML value, .*close it, or put"),
        ("data.train={path='a.jsonl'", r"expected a TOML value"),
        ('data.train="a.jsonl', r"expected a TOML value"),
        ("data.train=[ab]*.jsonl", r"put text that starts so into quotes"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(_write(tmp_path), [override])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["evaluation.offline_documents=4"], r"expected validation documents to judge 4 of, got none; set data.valid"),
        (
            ["evaluation.offline_documents=4", "data.validation_fraction=0.1"],
            r"expected prompts beside which 4 documents are judged, got none; set evaluation.prompts",
        ),
    ],
)
def test_documents_that_nobody_would_judge_are_an_error(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(_write(tmp_path), overrides)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="expected TOML"):
        load_config(_write(tmp_path, "[target\n"))
    with pytest.raises(ConfigError, match="drafter: expected a value, got none"):
        load_config(_write(tmp_path, "[target]\npath='x'\n[data]\ntrain=['a']\n"))


def test_every_fault_is_listed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(_write(tmp_path), ["anchors.per_pack=0", "optimizer.eps=-1"])
    assert "anchors.per_pack" in str(caught.value)
    assert "optimizer.eps" in str(caught.value)
