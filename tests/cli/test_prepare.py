"""``tp-dflash prepare`` from the command line: what a person sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.data import tiny
from tp_dflash.cli.prepare import prepare
from tp_dflash.config.load import ConfigError

app = typer.Typer()
app.command()(prepare)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer and three good records, one of them long, between two bad ones."""
    monkeypatch.chdir(tmp_path)
    tiny.make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    lines = [
        json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]})
        for answer in ("ok", "fine", "good day " * 40)
    ]
    Path("chats.jsonl").write_text("\n".join([lines[0], "broken", *lines[1:], '{"messages": []}']))
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def test_sizes_reasons_lengths_and_masks_are_shown(folder: Path) -> None:
    result = invoke("chats.jsonl", "--tokenizer", "tokenizer", "--set", "data.max_length=50")
    assert result.exit_code == 0, result.output
    for expected in ("5 records", "not_json", "empty_conversation", "bad_lines.jsonl", "length of training documents"):
        assert expected in result.output
    assert "an assistant turn ends with '<|im_end|>'" in result.output
    assert ">>ok<|im_end|><<" in result.output
    assert ">>fine<|im_end|><<" in result.output
    assert "chats.jsonl:4, 50 tokens" in result.output


def test_strict_stops(folder: Path) -> None:
    result = invoke("chats.jsonl", "--tokenizer", "tokenizer", "--strict")
    assert isinstance(result.exception, ConfigError)
    assert "chats.jsonl:2: not_json" in str(result.exception)


def test_output_folder(folder: Path) -> None:
    assert (
        invoke("chats.jsonl", "--tokenizer", "tokenizer", "--output", "here/prepared", "--examples", "0").exit_code == 0
    )
    assert (folder / "here" / "prepared" / "store.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chats.jsonl"], "data.tokenizer: expected a tokenizer"),
        (["missing.jsonl", "--tokenizer", "tokenizer"], "missing.jsonl"),
        (["chats.jsonl", "--tokenizer", "./missing"], "expected a folder or name of a tokenizer, got './missing'"),
        (["chats.jsonl", "--tokenizer", "tokenizer", "--set", "data.maxlength=3"], "did you mean 'max_length'"),
        (["chats.jsonl", "--tokenizer", "tokenizer", "--set", "drafter.block_size=3"], "expected keys of 'data'"),
        (["missing.toml"], "no such file"),
    ],
)
def test_mistakes_are_named(folder: Path, arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def _write_run(mask_token_id: int, per_pack: int) -> None:
    Path("run.toml").write_text(
        f"""
        [target]
        path = "tokenizer"
        [drafter]
        mask_token_id = {mask_token_id}
        block_size = 4
        [data]
        train = "chats.jsonl"
        max_length = 400
        token_budget = 512
        [anchors]
        per_pack = {per_pack}
        """
    )


def test_a_run_configuration_shows_packs_and_coverage_too(folder: Path) -> None:
    _write_run(mask_token_id=900, per_pack=1)
    result = invoke("run.toml")
    assert result.exit_code == 0, result.output
    assert "packs an epoch" in result.output
    assert "of supervised tokens lie in a block of epoch 0 (1 of" in result.output


def test_a_mask_token_that_occurs_in_the_data_is_told(folder: Path) -> None:
    taken = tiny.make_tokenizer().convert_tokens_to_ids("<|im_end|>")
    _write_run(taken, per_pack=16)
    result = invoke("run.toml")
    assert isinstance(result.exception, ConfigError)
    assert f"got {taken} ('<|im_end|>'), which occurs 6 times" in str(result.exception)
    assert "prepared in" in result.output
