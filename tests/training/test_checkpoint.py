"""A checkpoint does not know how the ranks that wrote it shared the drafter's state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.ranks import run_ranks
from tests.training.tiny import TinyRun, build_loop, build_step, open_tiny
from tp_dflash.training.checkpoint import load_training, training_tensors
from tp_dflash.training.checkpoint_folder import newest_complete
from tp_dflash.training.save_job import SaveJob, SaveRequest

SPREAD = TinyRun(drafter="0,1", nodes=2, max_steps=2)
COPIED = replace(SPREAD, drafter_shards="node")


def _save_and_load(rank: int, folder: str, writing: TinyRun, reading: TinyRun) -> float:
    """Largest difference of a weight or moment between the state that was saved and the one that was loaded."""
    placement, groups = open_tiny(writing, rank)
    loop = build_loop(writing, placement, groups, rank)
    loop.run(lambda _: False)
    saved = training_tensors(loop.step.drafter, loop.step.optimizer)
    SaveJob(SaveRequest(Path(folder), 2, {"updates": 2}, 1, frozenset()), saved, groups.savers).wait()
    found, _ = newest_complete(Path(folder))
    assert found is not None
    placement, groups = open_tiny(reading, rank)
    step = build_step(reading, placement, groups, rank)
    load_training(found, step.drafter, step.optimizer, groups.drafters)
    assert step.optimizer.updates == 2
    loaded = training_tensors(step.drafter, step.optimizer)
    assert loaded.keys() == saved.keys()
    assert all(bool(saved[f"moment1.{name}"].full_tensor().any()) for name in ("fc.weight", "norm.weight"))
    return max(float((saved[name].full_tensor() - loaded[name].full_tensor()).abs().max()) for name in saved)


@pytest.mark.parametrize(("writing", "reading"), [(SPREAD, COPIED), (COPIED, SPREAD)], ids=["to copies", "from copies"])
def test_shards_of_all_nodes_and_copies_on_each_read_each_other(
    tmp_path: Path, writing: TinyRun, reading: TinyRun
) -> None:
    assert run_ranks(_save_and_load, 4, str(tmp_path), writing, reading) == [0.0] * 4
    numbers = {}
    for path in (tmp_path / "step-00000002").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            numbers[path.name] = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    # However many copies there are, each number is written once.
    whole = run_ranks(_count, 1, TinyRun())[0]
    assert sum(numbers.values()) == whole, numbers


def _count(rank: int, run: TinyRun) -> int:
    placement, groups = open_tiny(run, rank)
    step = build_step(run, placement, groups, rank)
    return sum(tensor.numel() for tensor in training_tensors(step.drafter, step.optimizer).values())


def test_what_is_saved_may_change_at_once(tmp_path: Path) -> None:
    assert run_ranks(_overwrite, 2, str(tmp_path)) == [True, True]


def _overwrite(rank: int, folder: str) -> bool:
    run = TinyRun(drafter="0,1")
    placement, groups = open_tiny(run, rank)
    step = build_step(run, placement, groups, rank)
    tensors = training_tensors(step.drafter, step.optimizer)
    before = tensors["drafter.fc.weight"].full_tensor().clone()
    job = SaveJob(SaveRequest(Path(folder), 1, {"updates": 0}, 1, frozenset()), tensors, groups.savers)
    with torch.no_grad():
        for parameter in step.drafter.parameters():
            parameter.zero_()
    job.wait()
    found, _ = newest_complete(Path(folder))
    assert found is not None
    load_training(found, step.drafter, step.optimizer, groups.drafters)
    return bool(torch.equal(dict(step.drafter.named_parameters())["fc.weight"].full_tensor(), before))
