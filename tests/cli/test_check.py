"""``tp-dflash check`` as it is called: a line a finding, exit codes, and mistakes of the user."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.formats.contract.learnt import write_tiny_model
from tests.formats.folders import trained
from tp_dflash.cli.check import check
from tp_dflash.config.load import ConfigError
from tp_dflash.formats import write_zlab

CONFIGURATION = """
[target]
path = "{target}"
dtype = "float32"
[drafter]
mask_token_id = {mask}
block_size = 4
num_layers = 2
[data]
train = "text.jsonl"
"""


@pytest.fixture
def folders(tmp_path):
    config = write_tiny_model(tmp_path / "target")
    _, published = trained(config, torch.bfloat16, mask_token_id=3, target_layer_ids=[2, 5])
    write_zlab(tmp_path / "export", published)
    return tmp_path


def _run(*arguments):
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_sound_folder_exits_0_after_running_the_target(folders):
    result = _run(folders / "export", "--target", folders / "target")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1] == f"{len(lines) - 1} compared, 0 wrong"
    assert all(line.startswith("ok     ") for line in lines[:-1])
    assert any(line.startswith("ok     teacher rows: 8 of 8") for line in lines)


def test_a_wrong_field_exits_1_and_says_what_to_write(folders):
    path = folders / "export" / "config.json"
    config = json.loads(path.read_text())
    config["dflash_config"]["target_layer_ids"] = [3, 6]
    path.write_text(json.dumps(config))
    result = _run(folders / "export", "--target", folders / "target", "--files-only")
    assert result.exit_code == 1
    (wrong,) = [line for line in result.output.splitlines() if line.startswith("WRONG")]
    assert "[3, 6], but [2, 5] as trained" in wrong
    assert "write target_layer_ids [2, 5]" in wrong
    assert "teacher rows" not in result.output


def test_a_folder_that_cannot_be_built_is_still_checked_to_the_end(folders):
    path = folders / "export" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partial_rotary_factor": 0.25}))
    result = _run(folders / "export", "--target", folders / "target")
    assert result.exit_code == 1
    assert "WRONG  rotary dimension" in result.output
    assert "ok     teacher rows" in result.output


@pytest.mark.parametrize(("mask", "code"), [(3, 0), (2, 1), (40, 1)])
def test_a_configuration_is_checked_before_training(folders, mask, code):
    path = folders / "run.toml"
    path.write_text(CONFIGURATION.format(target=folders / "target", mask=mask))
    result = _run(path)
    assert result.exit_code == code, result.output
    assert "ok     layer ids: [1, 5]" in result.output
    assert "ok     teacher rows: 8 of 8" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--target", "TARGET"], "config.json"),
        (["EXPORT"], "--target"),
        (["EXPORT", "--target", "EMPTY"], "target.path"),
        (["EXPORT", "--target", "TARGET", "--files-only", "--server", "http://localhost:1"], "--files-only"),
    ],
)
def test_mistakes_of_the_user_are_one_error(folders, arguments, message):
    (folders / "empty").mkdir()
    places = {"EMPTY": str(folders / "empty"), "TARGET": str(folders / "target"), "EXPORT": str(folders / "export")}
    result = _run(*(places.get(argument, argument) for argument in arguments))
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
