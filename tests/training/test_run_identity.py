"""A checkpoint belongs to a run by what decides its packs and parameters, not by where files lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.ranks import run_ranks
from tests.whole_runs import make_folder, settings, train_rank

ALONE = {"target": "colocated", "drafter": "0"}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose run stopped after three steps."""
    folder = make_folder(tmp_path_factory.mktemp("begun"))
    run_ranks(train_rank, 1, settings(folder, "run", ALONE, training={"max_steps": 3}), timeout=120)
    return folder


def _moved(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "moved"))


def _go_on(folder: Path, **changes: dict[str, object]) -> None:
    run_ranks(train_rank, 1, settings(folder, "run", ALONE, **changes), timeout=120)


def test_a_moved_run_goes_on(begun: Path, tmp_path: Path) -> None:
    folder = _moved(begun, tmp_path)
    _go_on(folder)
    metrics = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["step"] > 3


def test_other_documents_are_refused(begun: Path, tmp_path: Path) -> None:
    folder = _moved(begun, tmp_path)
    with (folder / "train.jsonl").open("a") as lines:
        lines.write(json.dumps({"text": "w1 w2 w3 w4 w5"}) + "\n")
    with pytest.raises(AssertionError, match="expected a checkpoint of this configuration's documents"):
        _go_on(folder)


def test_another_target_is_refused(begun: Path, tmp_path: Path) -> None:
    folder = _moved(begun, tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssertionError, match="restore the settings and files"):
        _go_on(folder)


@pytest.mark.parametrize(
    "changes", [{"anchors": {"per_pack": 7}}, {"training": {"seed": 1}}, {"drafter": {"num_layers": 1}}], ids=str
)
def test_other_settings_are_refused(begun: Path, tmp_path: Path, changes: dict[str, dict[str, object]]) -> None:
    with pytest.raises(AssertionError, match="expected a checkpoint of this configuration's"):
        _go_on(_moved(begun, tmp_path), **changes)
