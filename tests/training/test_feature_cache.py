"""Runs that read features from files train like runs whose target computes them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.ranks import run_ranks
from tests.whole_runs import make_folder, settings, train_rank
from tp_dflash.config.load import parse_config
from tp_dflash.training.feature_cache import CachePlan, needs_target, open_cached_features, write_feature_cache

FEW_STEPS = {"checkpoint": {"every_steps": 100}, "logging": {"every_steps": 1, "tensorboard": False}}


def write_rank(rank: int, run_settings: dict[str, Any], folder: str) -> tuple[int, bool, int]:
    """One rank of the command; returns what was told before, and the tokens that were computed."""
    announced: list[CachePlan] = []
    tokens: list[int] = []
    assert dist.group.WORLD is not None
    write_feature_cache(
        parse_config(run_settings), Path(folder), dist.group.WORLD, torch.device("cpu"), announced.append, tokens.append
    )
    (plan,) = announced
    return plan.num_bytes, plan.exists, sum(tokens)


def write_twice(rank: int, run_settings: dict[str, Any], folder: str) -> list[tuple[int, bool, int]]:
    return [write_rank(rank, run_settings, folder) for _ in range(2)]


def losses(folder: Path, run: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def sum_of_tokens(folder: Path) -> int:
    lines = (folder / "train.jsonl").read_text().splitlines()
    return sum(len(json.loads(line)["text"].split()) for line in lines)


def test_online_and_cached_losses_are_equal(tmp_path: Path) -> None:
    """Two drafter ranks; the cache is written by two ranks and asked for again by the second call of each."""
    folder = make_folder(tmp_path)
    placement: dict[str, object] = {"target": "colocated", "drafter": "0,1"}
    online = settings(folder, "online", placement, **FEW_STEPS)
    run_ranks(train_rank, 2, online, timeout=120)

    first, second = run_ranks(write_twice, 2, online, str(folder / "features"), timeout=120)
    written = sum(path.stat().st_size for path in (folder / "features").glob("*.safetensors"))
    for (num_bytes, existed, _), again in (first, second):
        assert not existed
        assert written < num_bytes + 20_000
        assert again == (num_bytes, True, 0)
    assert first[0][2] + second[0][2] == sum_of_tokens(folder)

    cached = settings(folder, "cached", placement, **FEW_STEPS)
    cached["data"] = {**cached["data"], "feature_cache": str(folder / "features")}  # type: ignore[dict-item]
    run_ranks(train_rank, 2, cached, timeout=120)
    expected, got = losses(folder, "online"), losses(folder, "cached")
    assert len(got) == len(expected) == 6
    assert got[:3] == expected[:3], "packs of the first epoch are those that the cache was computed from"
    assert got[3:] == pytest.approx(expected[3:], rel=1e-4)


def test_two_ranks_that_hold_one_target_write_its_features(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    whole = settings(folder, "whole", {"target": "0", "drafter": "1"})
    shared = settings(folder, "shared", {"target": "0,1", "drafter": "2", "target_tensor_parallel": 2})
    run_ranks(write_rank, 1, whole, str(folder / "by-one"))
    run_ranks(write_rank, 2, shared, str(folder / "by-two"))
    (expected,), (got,) = (list((folder / name).glob("*.safetensors")) for name in ("by-one", "by-two"))
    for name, tensor in load_file(expected).items():
        torch.testing.assert_close(load_file(got)[name], tensor, rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError, match="expected a divisor of 3 ranks, got 2"):
        run_ranks(write_rank, 3, shared, str(folder / "by-three"))


def test_target_ranks_and_cached_features_do_not_go_together() -> None:
    config = SimpleNamespace(data=SimpleNamespace(feature_cache="x"), placement=SimpleNamespace(target="0"))
    context: Any = SimpleNamespace(config=config, place=SimpleNamespace(is_target=False))
    with pytest.raises(ValueError, match='set placement.target = "colocated"'):
        open_cached_features(context, None)  # type: ignore[arg-type]


def test_the_target_is_only_loaded_for_features_or_prompts(tmp_path: Path) -> None:
    placement: dict[str, object] = {"target": "colocated"}
    prompts = {"prompts": [{"name": "few", "path": "prompts.jsonl"}]}
    cached = {"feature_cache": "features"}
    for changes, expected in (({}, True), ({"data": cached}, False), ({"data": cached, "evaluation": prompts}, True)):
        assert needs_target(parse_config(settings(tmp_path, "run", placement, **changes))) is expected
