"""From text files to an exported drafter, on several ranks: the drafter does not depend on who computed what."""

from __future__ import annotations

import json
import shutil
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


def _losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_two_ranks_that_hold_one_target_train_the_same_drafter(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """Two targets of two ranks each, decoding included; then two ranks go on with what one whole target began."""
    shared = {"target": "0-3", "drafter": "4", "target_tensor_parallel": 2}
    prompts = [{"name": "held out", "path": str(folder / "prompts.jsonl")}]
    evaluation = {"prompts": prompts, "max_new_tokens": 8, "before_training": True, "every_steps": 4}
    got = _exported(folder, "shared", 5, shared, training={"accumulation": 2}, evaluation=evaluation)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, atol=1e-6, rtol=0), name
    assert _losses(folder / "shared") == pytest.approx(_losses(folder / "alone"), rel=1e-5)
    assert json.loads((folder / "shared" / "report.json").read_text())["acceptance_after"] >= 1


def test_a_target_on_more_ranks_goes_on_where_a_whole_one_was(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    keep = {"every_steps": 3, "keep_last": 9}
    _exported(folder, "whole", 2, {"target": "0", "drafter": "1"}, training={"accumulation": 2}, checkpoint=keep)
    for checkpoint in (folder / "whole" / "checkpoints").iterdir():
        if checkpoint.name != "step-00000003":
            shutil.rmtree(checkpoint)
    placement = {"target": "0,1", "drafter": "2", "target_tensor_parallel": 2}
    got = _exported(folder, "whole", 3, placement, training={"accumulation": 2}, checkpoint=keep)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, atol=1e-6, rtol=0), name


def test_heads_that_do_not_share_out_end_every_rank(folder: Path) -> None:
    placement = {"target": "0-2", "drafter": "3", "target_tensor_parallel": 3}
    with pytest.raises(
        AssertionError, match=r"key/value heads: expected a size that 3 target ranks share evenly, got 2"
    ):
        run_ranks(train_rank, 4, settings(folder, "cut-heads", placement))


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
