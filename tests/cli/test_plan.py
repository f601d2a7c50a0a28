"""``tp-dflash plan`` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tp_dflash.cli import app
from tp_dflash.config.load import ConfigError

CONFIGS = Path(__file__).parents[2] / "launch" / "configs"


def _plan(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3-8b", "qwen3-8b-single-gpu"])
def test_a_configuration_that_fits_ends_with_0(name: str) -> None:
    code, text = _plan(str(CONFIGS / f"{name}.toml"), "--gpu-memory", "95GiB")
    assert code == 0
    assert "Verdict: fits" in text
    assert "tokens/s" in text


def test_one_that_does_not_ends_with_1_and_says_what_to_change() -> None:
    code, text = _plan(
        str(CONFIGS / "qwen3.6-27b-ddtree.toml"), "--gpu-memory", "44GiB", "--set", "placement.target=0-4"
    )
    assert code == 1
    assert "does not fit" in text
    assert "--set target.tokens_per_forward=8192" in text


def test_a_sweep_prints_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "sweep.png"
    code, text = _plan(
        str(CONFIGS / "qwen3.6-27b-2x8.toml"),
        "--gpu-memory",
        "95GiB",
        "--sweep",
        "nodes=1,2,4",
        "--picture",
        str(picture),
    )
    assert code == 0
    assert "targets busy" in text
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments",
    [("--gpu-memory", "plenty"), ("--set", "anchors.per_pack=65536"), ("--sweep", "gpus=3"), ("--nproc-per-node", "4")],
    ids=lambda arguments: arguments[0],
)
def test_what_cannot_be_is_an_error(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        _plan(str(CONFIGS / "qwen3.6-27b-ddtree.toml"), *arguments)
