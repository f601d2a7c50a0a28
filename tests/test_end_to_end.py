"""From text files to an exported drafter, on several ranks: the drafter does not depend on who computed what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.ranks import run_ranks
from tests.whole_runs import make_folder, settings, train_rank

COLOCATED = {"target": "colocated", "drafter": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("target"))


def _exported(
    folder: Path, run: str, world: int, placement: dict[str, object], **changes: dict[str, object]
) -> dict[str, torch.Tensor]:
    run_ranks(train_rank, world, settings(folder, run, placement, **changes), timeout=120)
    return load_file(folder / run / "export" / "model.safetensors")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, torch.Tensor]:
    """One rank that is everything."""
    return _exported(folder, "alone", 1, COLOCATED, training={"accumulation": 2})


@pytest.mark.parametrize("num_targets", [1, 3])
def test_any_number_of_target_ranks_gives_the_same_bits(
    folder: Path, expected: dict[str, torch.Tensor], num_targets: int
) -> None:
    placement = {"target": ",".join(map(str, range(num_targets))), "drafter": str(num_targets)}
    got = _exported(folder, f"targets-{num_targets}", num_targets + 1, placement, training={"accumulation": 2})
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_streamed_tensor_parallel_ranks_train_the_same_drafter(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    placement = {"target": "0", "drafter": "1,2", "head": "1-3", "tensor_parallel": 2}
    got = _exported(folder, "parallel", 4, placement)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, atol=1e-6, rtol=0), name


def test_a_run_leaves_its_report_metrics_and_description(folder: Path) -> None:
    prompts = [{"name": "held out", "path": str(folder / "prompts.jsonl")}]
    evaluation = {"prompts": prompts, "max_new_tokens": 8, "before_training": True, "every_steps": 4}
    placement = {"target": "0", "drafter": "1"}
    run_ranks(
        train_rank,
        2,
        settings(folder, "told", placement, evaluation=evaluation, training={"max_steps": 5}),
        timeout=120,
    )
    run = folder / "told"
    report = json.loads((run / "report.json").read_text())
    assert report["acceptance_before"] >= 1
    assert report["acceptance_after"] >= 1
    assert report["tokens_per_second"] > 0
    assert Path(report["export"]).is_dir()
    assert list(report["evaluations"]) == ["0", "4", "5"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 5]
    described = json.loads((run / "run.json").read_text())
    assert described["argv"] == ["test"]
    assert described["config"]["training"]["max_steps"] == 5
    assert described["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drafter": {"mask_token_id": 10}}, r"mask_token_id: expected a token that never occurs in the data, got 10"),
        ({"drafter": {"mask_token_id": 47}}, r"mask token within the target's 47 embedding rows, got 47"),
        ({"drafter": {"mask_token_id": 1}}, r"got 1, which is one of the target's padding, begin and end tokens"),
        ({"drafter": {"target_layer_ids": [1, 4]}}, r"target_layer_ids"),
    ],
    ids=["occurs", "beyond", "eos", "last layer"],
)
def test_what_cannot_be_trained_ends_every_rank_before_the_first_step(
    folder: Path, changes: dict[str, dict[str, object]], words: str
) -> None:
    placement = {"target": "0", "drafter": "1"}
    with pytest.raises(AssertionError, match=words):
        run_ranks(train_rank, 2, settings(folder, "refused", placement, **changes))
    assert not (folder / "refused" / "export").exists()
