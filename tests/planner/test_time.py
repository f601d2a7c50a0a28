"""Predicted rates: against the measured run, over nodes, and what bounds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.plans import COLOCATED, CONFIGS, ONE_AND_ONE, verdict_of
from tp_dflash.config.load import load_config
from tp_dflash.planner import Calibration, parse_nodes, predict_time, read_calibration, sweep_nodes, sweep_text

MEASURED = json.loads((Path(__file__).parents[2] / "docs" / "results" / "step.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("part", "settings"), [("steps", ONE_AND_ONE), ("colocated", COLOCATED)], ids=["1 + 1", "co"])
def test_rates_are_within_15_percent_of_the_measured_ones(part: str, settings: tuple[str, ...]) -> None:
    verdict = verdict_of(settings=(*settings, "data.max_length=2048"))
    predicted = predict_time(verdict.sizes, verdict.calibration).tokens_per_second
    assert predicted == pytest.approx(MEASURED["parts"][part]["measured"]["tokens_per_second"], rel=0.15)


def test_the_slower_side_sets_the_pace() -> None:
    verdict = verdict_of()
    time = predict_time(verdict.sizes, verdict.calibration)
    assert time.tokens_per_second == pytest.approx(time.target_only_tokens_per_second)
    slow = Calibration(head_tflops=1.0)
    time = predict_time(verdict.sizes, slow)
    assert time.tokens_per_second < time.target_only_tokens_per_second
    assert time.packs_per_second == time.drafter_packs_per_second


def test_colocated_ranks_take_turns() -> None:
    verdict = verdict_of(settings=COLOCATED)
    time = predict_time(verdict.sizes, verdict.calibration)
    assert time.packs_per_second == pytest.approx(2 / (time.target + time.drafter_pack))


def test_head_work_counts_each_unique_teacher_row_once() -> None:
    from tp_dflash.planner.step_time import expected_teacher_rows, head_flops

    sizes = verdict_of().sizes
    assert 0.8 * 23552 < expected_teacher_rows(sizes) < 0.9 * 23552
    assert head_flops(sizes) == pytest.approx(2 * 248320 * 5120 * (2 * 23552 + expected_teacher_rows(sizes)))
    dpace = verdict_of(settings=("objective.weights=dpace",)).sizes
    assert head_flops(dpace) == pytest.approx(2 * 248320 * 5120 * 3 * 23552)


def test_a_sweep_scales_the_pool_and_spreads_the_state() -> None:
    config = load_config(CONFIGS / "qwen3.6-27b-2x8.toml")
    points = sweep_nodes(config, parse_nodes("nodes=1,2,4"), Calibration())
    assert [point.num_gpus for point in points] == [8, 16, 32]
    assert points[1].time.tokens_per_second == pytest.approx(2 * points[0].time.tokens_per_second, rel=0.02)
    assert len(sweep_text(points).splitlines()) == 4


@pytest.mark.parametrize("text", ["nodes", "nodes=", "nodes=0", "gpus=1,2", "nodes=1,x"])
def test_a_sweep_of_nonsense_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="nodes=1,2,4"):
        parse_nodes(text)


def test_a_calibration_file_is_read_back_and_a_wrong_one_named(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(Calibration(target_tflops=123.0).model_dump()), encoding="utf-8")
    assert read_calibration(path).target_tflops == 123.0
    path.write_text('{"target_tflop": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"calibration\.json"):
        read_calibration(path)
