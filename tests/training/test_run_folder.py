"""What a run's folder says of its ranks belongs to the latest start."""

from __future__ import annotations

import json
from pathlib import Path

from tp_dflash.training.heartbeat import Heartbeat, read_heartbeats
from tp_dflash.training.run_folder import RunFolder


def test_a_start_with_fewer_ranks_does_not_show_those_of_the_one_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.describe(["train"], {}, "3 ranks")
    for rank in range(3):
        Heartbeat(rank, "drafter", rank, 7, 0, 0.0).write(folder.ranks)
    folder.describe(["train", "--again"], {}, "1 rank")
    Heartbeat(0, "drafter", 0, 9, 0, 0.0).write(folder.ranks)
    assert [(beat.rank, beat.step) for beat in read_heartbeats(folder.ranks)] == [(0, 9)]
    assert json.loads((folder.path / "run.json").read_text())["argv"] == ["train", "--again"]
