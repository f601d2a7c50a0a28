"""A checkpoint counts only when it is whole; damage of any kind is named and passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tp_dflash.training.checkpoint_folder import (
    clear_partial,
    find_fault,
    newest_complete,
    partial_path,
    remove_old,
    seal,
)


def _save(root: Path, step: int) -> Path:
    partial = partial_path(root, step)
    partial.mkdir(parents=True)
    (partial / "weights.safetensors").write_bytes(bytes(range(200)))
    (partial / "moments.safetensors").write_bytes(bytes(100))
    return seal(root, step, {"updates": step}).path


def _halve(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(bytes(range(100)))


def _flip(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(bytes(200))


def _lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _garble(folder: Path) -> None:
    (folder / "manifest.json").write_text("[1, 2")


def _forge(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"files": {"../outside": {"bytes": 1, "sha256": "x"}}}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_halve, "100 bytes, the manifest says 200"),
        (_flip, "checksum"),
        (_lose("moments.safetensors"), "moments.safetensors is missing"),
        (_lose("state.json"), "state.json is missing"),
        (_lose("manifest.json"), "no manifest.json"),
        (_garble, "cannot be read"),
        (_forge, "../outside is missing"),
        (shutil.rmtree, None),
    ],
)
def test_a_damaged_newest_is_passed_over(tmp_path: Path, damage: Callable[[Path], None], words: str | None) -> None:
    _save(tmp_path, 10)
    damage(_save(tmp_path, 20))
    found, skipped = newest_complete(tmp_path)
    assert found is not None
    assert found.step == 10
    assert found.state()["updates"] == 10
    if words:
        assert words in skipped[0]
        assert "step-00000020" in skipped[0]


def test_foreign_folders_and_cut_saves_are_not_checkpoints(tmp_path: Path) -> None:
    _save(tmp_path, 10)
    for name in ("99999999", "step-99", "step-00000099.bak"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000098").write_text("a file")
    partial_path(tmp_path, 30).mkdir()
    found, skipped = newest_complete(tmp_path)
    assert found is not None
    assert (found.step, skipped) == (10, [])


def test_nothing_there_is_not_an_error(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "none") == (None, [])


def test_old_ones_and_cut_saves_go(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _save(tmp_path, step)
    partial_path(tmp_path, 5).mkdir()
    remove_old(tmp_path, keep_last=2, keep=frozenset({1}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003", "step-00000004"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    _save(tmp_path, 7)
    assert find_fault(_save(tmp_path, 7)) is None


def test_damaged_later_folders_do_not_push_out_what_is_saved_now(tmp_path: Path) -> None:
    """A run that went on from step 10 because step 20 is damaged saves step 12 and keeps one checkpoint: that one."""
    _save(tmp_path, 10)
    _flip(_save(tmp_path, 20))
    _save(tmp_path, 12)
    remove_old(tmp_path, keep_last=1, newest=12)
    found, _ = newest_complete(tmp_path)
    assert found is not None
    assert found.step == 12


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    _halve(_save(tmp_path, 10))
    with pytest.raises(ValueError, match="none of the checkpoints is complete"):
        newest_complete(tmp_path)


def test_what_a_cut_save_left_is_not_part_of_the_next_one(tmp_path: Path) -> None:
    clear_partial(tmp_path, 5)
    (partial_path(tmp_path, 5) / "shard-00002.safetensors").write_bytes(bytes(9))
    clear_partial(tmp_path, 5)
    assert list(partial_path(tmp_path, 5).iterdir()) == []
