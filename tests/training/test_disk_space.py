"""Room for checkpoints: an error where not one fits, a warning where not all that are kept fit."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.training.tiny import SHAPE
from tp_dflash.config.checkpoint import CheckpointConfig
from tp_dflash.training.disk_space import check_space

ONE = SHAPE.num_parameters * 12
EXPORT = SHAPE.num_parameters * 4
Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "outcome"),
    [
        (ONE + EXPORT - 1, "error"),
        (ONE + EXPORT, "warning"),
        (4 * ONE + EXPORT - 1, "warning"),
        (4 * ONE + EXPORT, "nothing"),
    ],
)
def test_two_kept_the_best_and_one_in_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10 * free, 9 * free, free))
    config = CheckpointConfig(keep_last=2, keep_best=True)
    if outcome == "error":
        with pytest.raises(ValueError, match="expected room for a checkpoint .* free some"):
            check_space(tmp_path, SHAPE, config)
        return
    lines = check_space(tmp_path, SHAPE, config)
    assert [("lower checkpoint.keep_last" in line) for line in lines] == [True] * (outcome == "warning")
