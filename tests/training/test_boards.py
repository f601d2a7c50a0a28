"""Weights & Biases gets each figure once, under one run for a folder; without the package the message says what to install."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tp_dflash.config.logging import LoggingConfig
from tp_dflash.training.boards import open_boards
from tp_dflash.training.run_folder import RunFolder


class _Project(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[dict[str, float], int]] = []
        self.ended = False

    def init(self, **settings: Any) -> _Project:
        self.settings = settings
        return self

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.logged.append((scalars, step))

    def finish(self) -> None:
        self.ended = True


def test_figures_reach_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _Project()
    monkeypatch.setitem(sys.modules, "wandb", project)
    [board] = open_boards(RunFolder(tmp_path / "nightly"), LoggingConfig(tensorboard=False, wandb="drafters"))
    board.show({"loss": 2.0}, 5)
    board.close()
    assert project.logged == [({"loss": 2.0}, 5)]
    assert project.ended
    expected = {"project": "drafters", "id": "nightly", "resume": "allow"}
    assert {name: project.settings[name] for name in expected} == expected


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install tp_dflash\[wandb\]"):
        open_boards(RunFolder(tmp_path), LoggingConfig(wandb="drafters"))
