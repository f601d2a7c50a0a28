"""Data that gives out: no validation document, nothing to train anywhere, fewer documents than ranks. All ranks end with 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import exported

SPLIT: dict[str, object] = {"target": "0,1", "drafter": "2,3"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ends")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


VALIDATION = {
    "an empty file": "",
    "a broken line": '{"text": \n',
    "one word": '{"text": "w1"}\n',
    "one document": '{"text": "w1 w2 w3 w4 w5 w6 w7"}\n',
}


@pytest.mark.parametrize("what", VALIDATION)
def test_however_few_validation_documents_a_run_ends_well(folder: Path, what: str) -> None:
    run = what.replace(" ", "-")
    judged = {"prompts": [{"name": "held out", "path": str(folder / "prompts.jsonl")}], "max_new_tokens": 4}
    evaluation = judged | {"baseline_prompts": 0, "offline_documents": 4, "offline_tree_budgets": [8]}
    (folder / f"{run}.jsonl").write_text(VALIDATION[what])
    data = {"validation": [str(folder / f"{run}.jsonl")]}
    job = complete(write_config(folder, run, SPLIT, data=data, evaluation=evaluation), 4)
    assert json.loads((folder / run / "report.json").read_text())["acceptance_after"] >= 1
    assert ("validation: no documents" in job.text()) == (what != "one document")


def test_a_share_of_one_document_is_no_document(folder: Path) -> None:
    write_config(folder, "share", {"drafter": "0"})
    (folder / "single.jsonl").write_text((folder / "train.jsonl").read_text().splitlines(keepends=True)[0])
    data = {"train": [str(folder / "single.jsonl")], "validation_fraction": 0.9}
    job = complete(write_config(folder, "share", {"drafter": "0"}, data=data), 1)
    assert "validation: no documents" in job.text()


@pytest.mark.parametrize("placement", [SPLIT, {"drafter": "0,1", "head": "0-2", "tensor_parallel": 2}], ids=str)
def test_nothing_to_train_on_any_rank_in_any_step(folder: Path, placement: dict[str, object]) -> None:
    """The drafter stays what it was at the start, and every step is counted as empty."""
    run = f"nothing-{len(placement)}"
    config = write_config(folder, run, placement, logging={"every_steps": 1})
    world = 4 if placement is SPLIT else 3
    job = Job(config, world, fault="nothing to train beyond document -1")
    assert job.wait() == [0] * world, job.text()
    figures = lines(folder / run / "metrics.jsonl")
    assert figures
    assert all(line["empty_steps"] == 1 and line["loss"] is None for line in figures)
    weights = exported(folder / run)
    complete(write_config(folder, f"{run}-trained", placement, training={"epochs": 1}), world)
    moved = exported(folder / f"{run}-trained")
    assert all(bool((weights[name] == 1).all()) for name in weights if weights[name].ndim == 1)
    assert any(bool((moved[name] != weights[name]).any()) for name in moved)


SMALL_WORLDS = {
    "five targets": (6, 1, {"target": "0-4", "drafter": "5"}),
    "a copy on each of two nodes": (4, 2, {"target": "0", "drafter": "1", "drafter_shards": "node"}),
    "a head-only rank": (4, 1, {"target": "0", "drafter": "1,2", "head": "1-3", "tensor_parallel": 2}),
}


@pytest.mark.parametrize("name", SMALL_WORLDS)
def test_one_document_on_many_ranks(folder: Path, name: str) -> None:
    world, nodes, placement = SMALL_WORLDS[name]
    run = name.replace(" ", "-")
    write_config(folder, run, placement)
    (folder / "one.jsonl").write_text((folder / "train.jsonl").read_text().splitlines(keepends=True)[0])
    complete(write_config(folder, run, placement, data={"train": [str(folder / "one.jsonl")]}), world, nodes=nodes)
    assert lines(folder / run / "metrics.jsonl")[-1]["step"] == 2
