"""Worlds of other shapes: the 5 + 2 machine with a head-only rank, two nodes, too little data for the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.job import Job, complete, write_config
from tests.cli.test_resume import cut, difference, exported

EIGHT = {"target": "0-4", "drafter": "5,6", "head": "5-7", "tensor_parallel": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


def test_five_targets_two_drafters_and_a_head_only_rank(folder: Path) -> None:
    """The machine of eight trains what two ranks without a target of their own train."""
    evaluation = {"prompts": [{"name": "held out", "path": str(folder / "prompts.jsonl")}], "max_new_tokens": 4}
    changes = {"evaluation": evaluation | {"baseline_prompts": 0}, "training": {"epochs": 3}}
    complete(write_config(folder, "eight", EIGHT, **changes), 8)
    complete(write_config(folder, "two", {"drafter": "0,1", "tensor_parallel": 2}, training={"epochs": 3}), 2)
    assert difference(exported(folder / "eight"), exported(folder / "two")) <= 1e-6
    assert json.loads((folder / "eight" / "report.json").read_text())["acceptance_after"] >= 1
    assert len(list((folder / "eight" / "ranks").glob("rank-*.json"))) == 8


def test_two_nodes_lose_a_rank_and_go_on(folder: Path) -> None:
    place = {"target": "0", "drafter": "1"}
    complete(write_config(folder, "nodes", place), 4, nodes=2)
    config = write_config(folder, "nodes-cut", place)
    job = Job(config, 4, nodes=2)
    job.until(folder / "nodes-cut" / "checkpoints" / "step-00000003")
    job.kill(3)
    codes = job.wait(60)
    assert codes[:3] == [1, 1, 1], job.text()
    assert "rank 3, drafter, node 1, GPU 1" in job.output(0)
    complete(config, 4, nodes=2)
    assert difference(exported(folder / "nodes"), exported(folder / "nodes-cut")) == 0


def test_a_run_on_two_nodes_goes_on_with_a_copy_on_each(folder: Path) -> None:
    """Two drafter ranks a node: from the middle of a run whose state was spread over all four, to its end."""
    place = {"drafter": "0,1"}
    kept = {"every_steps": 3, "keep_last": 9}
    complete(write_config(folder, "spread", place, training={"epochs": 4}, checkpoint=kept), 4, nodes=2)
    cut(folder / "spread", folder / "copied", step=3)
    copies = place | {"drafter_shards": "node"}
    job = complete(write_config(folder, "copied", copies, training={"epochs": 4}), 4, nodes=2)
    assert "state over 2 drafter ranks, a copy on each of 2 nodes" in job.text()
    assert "continued from" in job.text()
    assert difference(exported(folder / "spread"), exported(folder / "copied")) <= 1e-6


@pytest.mark.parametrize("documents", [1, 2, 7])
def test_any_number_of_documents_ends_well(folder: Path, documents: int) -> None:
    """Fewer packs than ranks: some ranks never train a row, and all take the same steps."""
    config = write_config(folder, f"few-{documents}", {"target": "0", "drafter": "1,2,3"})
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)[:documents]
    (folder / f"few-{documents}.jsonl").write_text("".join(lines))
    complete(config, 4, ["--set", f'data.train=["{folder}/few-{documents}.jsonl"]'])
    steps = [
        json.loads(line)["step"] for line in (folder / f"few-{documents}" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps[-1] == 2


def test_the_first_step_after_a_resume_may_have_nothing_to_train(folder: Path) -> None:
    """Only document 0 has an anchor: in most steps one or both drafter ranks have nothing, at the first step or any other."""
    whole = idle_run(folder, "idle", [])
    for limit in range(3):
        assert idle_run(folder, "idle-cut", ["--max-time", "0.01"], whole=limit == 0) is None
    cut = idle_run(folder, "idle-cut", [], whole=False)
    assert cut is not None
    assert whole is not None
    assert difference(exported(whole), exported(cut)) == 0
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["empty_steps"] for line in metrics) >= len(metrics)


def idle_run(folder: Path, run: str, extra: list[str], whole: bool = True) -> Path | None:
    """One start of the run; its folder if it came to the end."""
    config = write_config(folder, run, {"target": "0", "drafter": "1,2"}, data={"token_budget": 24, "max_length": 24})
    job = Job(config, 3, extra, fault="nothing to train beyond document 0")
    assert job.wait() == [0, 0, 0], job.text()
    assert whole or "continued from" in job.text()
    return folder / run if (folder / run / "export").exists() else None
