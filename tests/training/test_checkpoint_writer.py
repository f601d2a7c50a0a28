"""The best evaluated checkpoint stays, however old; what cannot be read of it is an error before anything is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.config.checkpoint import CheckpointConfig
from tp_dflash.training.checkpoint_writer import CheckpointWriter, read_best


def _writer(root: Path, rank: int = 0, **settings: bool | int) -> CheckpointWriter:
    assert dist.group.WORLD is not None
    return CheckpointWriter(root, CheckpointConfig(**settings), dist.group.WORLD, rank == 0, lambda text: None)


def _save_five(rank: int, root: str, acceptance: list[float], keep_best: bool, skip: int) -> list[str]:
    """Five checkpoints, each evaluated (but for step ``skip``); what is left of them."""
    writer = _writer(Path(root), rank, keep_best=keep_best, keep_last=1)
    for step, length in enumerate(acceptance, start=1):
        if step != skip:
            writer.save(step, {"drafter.w": torch.full((2,), float(step))}, {"updates": step})
            writer.collect()
        writer.note_acceptance(step, length)
    dist.barrier()
    return sorted(path.name for path in Path(root).glob("step-*"))


@pytest.mark.parametrize(
    ("acceptance", "keep_best", "skip", "left"),
    [
        ([1.5, 2.5, 2.0, 2.4, 2.1], True, 0, [2, 5]),
        ([1.5, 2.5, 2.5, 2.4, 2.1], True, 0, [2, 5]),
        ([1.5, 2.5, 2.0, 2.4, 3.0], True, 0, [2, 5]),  # the former best goes with the next save
        ([1.5, 2.5, 2.0, 2.4, 2.1], False, 0, [5]),
        ([1.5, 9.0, 2.0, 2.4, 2.1], True, 2, [4, 5]),
    ],
    ids=["in the middle", "the first of equals", "the last", "off", "never saved"],
)
def test_which_are_left(tmp_path: Path, acceptance: list[float], keep_best: bool, skip: int, left: list[int]) -> None:
    for names in run_ranks(_save_five, 2, str(tmp_path), acceptance, keep_best, skip):
        assert names == [f"step-{step:08d}" for step in left]
    assert (read_best(tmp_path) is None) == (not keep_best)


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"step": "x", "acceptance_length": 2}', "{", '{"step": 3}'])
def test_a_broken_record_is_named_and_nothing_is_deleted(tmp_path: Path, content: str) -> None:
    run_ranks(_save_five, 1, str(tmp_path), [2.0, 1.0], True, 0)
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(AssertionError, match=r"best.json: expected the best checkpoint's step .* correct the file"):
        run_ranks(_save_five, 1, str(tmp_path), [1.0], True, 0)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001", "step-00000002"]
