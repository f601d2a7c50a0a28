"""The whole evaluation: figures that add up, the same for every number of ranks and every batch size."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

from tests.evaluation.models import answered_documents, make_drafter, make_prompts, open_target, save_target
from tests.ranks import run_ranks
from tp_dflash.config.evaluation import EvaluationConfig
from tp_dflash.config.target import TargetConfig
from tp_dflash.drafter import Drafter
from tp_dflash.evaluation import (
    EvaluationReport,
    PromptSet,
    draw_report,
    evaluate_drafter,
    offline_acceptance,
    report_table,
)
from tp_dflash.target import Target

DOCUMENTS = answered_documents(make_prompts(3), make_prompts(3, seed=1))
SETS = (PromptSet("seven", tuple(map(tuple, make_prompts(7)))), PromptSet("one", ((5, 6, 7),)))


@cache
def _saved() -> TargetConfig:
    return save_target(Path(mkdtemp()))[1]


@cache
def _opened(saved: str) -> tuple[Target, Tensor, Drafter]:
    target, head_VD = open_target(TargetConfig.model_validate_json(saved))
    return target, head_VD, make_drafter(target)


def _world() -> tuple[Target, Tensor, Drafter]:
    return _opened(_saved().model_dump_json())


def _evaluate(
    group: Any = None, progress: Any = None, saved: str = "", documents: Any = (), **settings: Any
) -> EvaluationReport:
    target, head_VD, drafter = _opened(saved) if saved else _world()
    config = EvaluationConfig(**({"max_new_tokens": 12, "baseline_prompts": 3} | settings))
    return evaluate_drafter(drafter, target, head_VD, SETS, config, documents=documents, group=group, progress=progress)


def _timeless(report: EvaluationReport) -> dict[str, Any]:
    """Everything but seconds and speeds."""
    figures = report.to_json()
    figures["sets"] = [
        {name: value for name, value in each.items() if "second" not in name and name != "speedup"}
        for each in figures["sets"]
    ]
    del figures["settings"]
    return json.loads(json.dumps(figures))


def test_figures_add_up() -> None:
    report = _evaluate()
    for each, prompts in zip(report.sets, SETS, strict=True):
        assert each.num_prompts == len(prompts.prompts)
        assert each.num_blocks == sum(each.streak_histogram)
        accepted = sum(streak * count for streak, count in enumerate(each.streak_histogram))
        assert each.acceptance_length == pytest.approx(1 + accepted / each.num_blocks)
        assert sum(each.acceptance_by_position) == pytest.approx(each.acceptance_length - 1)
        assert each.tokens_per_second == pytest.approx(each.num_tokens / sum(each.phase_seconds.values()))
        assert min(each.draft_seconds, each.verify_seconds, each.rest_seconds, each.prefill_seconds) > 0
        assert each.speedup is not None
        assert each.identical == each.compared_prompts == min(3, each.num_prompts)
    blocks = sum(each.num_blocks for each in report.sets)
    together = sum(each.acceptance_length * each.num_blocks for each in report.sets) / blocks
    assert report.acceptance_length == pytest.approx(together)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.8}, {"temperature": 0.8, "acceptance": "match"}, {"tree_budget": 9}]
)
def test_batches_cannot_show(settings: dict[str, Any]) -> None:
    alone = _timeless(_evaluate(batch_size=1, **settings))
    assert _timeless(_evaluate(batch_size=3, **settings)) == _close(alone)
    assert _timeless(_evaluate(batch_size=8, **settings)) == _close(alone)


def _close(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _close(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_close(item) for item in value]
    return pytest.approx(value, rel=1e-4) if isinstance(value, float) else value


def test_ranks_cannot_show() -> None:
    """Case 23: sums and counts travel, so two ranks, one of which has no prompt of the second set, change nothing."""
    expected = _close(_timeless(_evaluate(temperature=0.8, documents=DOCUMENTS)))
    assert run_ranks(_on_rank, 2, _saved().model_dump_json(), timeout=180) == [expected] * 2


def _on_rank(rank: int, saved: str) -> dict[str, Any]:
    return _timeless(_evaluate(group=dist.group.WORLD, saved=saved, temperature=0.8, documents=DOCUMENTS))


def test_documents_are_judged_as_they_stand() -> None:
    target, head_VD, drafter = _world()
    expected = offline_acceptance(drafter, target, head_VD, DOCUMENTS, (4,)).lengths()
    report = _evaluate(documents=DOCUMENTS, offline_tree_budgets=[4])
    assert report.offline == expected
    assert report.figures()["offline/tree_4"] == expected["tree_4"]
    assert report.to_json()["offline"] == expected
    assert report_table(report).caption == (
        f"acceptance length on documents as they stand: chain {expected['chain']:.2f}, tree of 4 {expected['tree_4']:.2f}"
    )
    assert _evaluate().offline == {}


def test_other_seeds_draw_other_answers() -> None:
    assert _timeless(_evaluate(temperature=1.0)) == _timeless(_evaluate(temperature=1.0))
    assert _timeless(_evaluate(temperature=1.0)) != _timeless(_evaluate(temperature=1.0, seed=1))


def test_no_baseline_leaves_its_figures_out() -> None:
    each = _evaluate(baseline_prompts=0).sets[0]
    assert (each.plain_tokens_per_second, each.speedup, each.compared_prompts) == (None, None, 0)


def test_drawn_drafts_say_nothing_of_calibration() -> None:
    drawn = _evaluate(temperature=1.0).sets[0]
    assert (drawn.calibration, drawn.identical) == (None, None)
    assert _evaluate(temperature=1.0, acceptance="match").sets[0].expected_streak > 0


def test_trees_that_stop_by_cost_answer_the_same() -> None:
    report = _evaluate(tree_budget=32, tree_stop="cost")
    assert all(each.identical == each.compared_prompts for each in report.sets)


def test_progress_counts_prompts() -> None:
    seen: list[tuple[str, int, int]] = []
    _evaluate(progress=lambda *call: seen.append(call), batch_size=2)
    assert [call for call in seen if call[0] == "seven"] == [("seven", done, 7) for done in (2, 3, 5, 7)]
    assert seen[-1] == ("one", 1, 1)


def test_the_drafter_is_given_back_as_it_was() -> None:
    _, _, drafter = _world()
    drafter.train()
    _evaluate()
    assert drafter.training


def test_another_targets_drafter_is_refused() -> None:
    target, head_VD, _ = _world()
    other = make_drafter(target, target_layer_ids=[0, 1, 2])
    with pytest.raises(ValueError, match=r"\(0, 1, 2\).*its own target"):
        evaluate_drafter(other, target, head_VD, SETS, EvaluationConfig())


def test_answers_beyond_the_targets_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"128 positions, got \d+ \+ 127.*evaluation\.max_new_tokens"):
        _evaluate(max_new_tokens=127)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tree_budget": 4, "acceptance": "rejection"}, "expected match for trees"),
        ({"tree_stop": "cost"}, "expected a tree"),
        ({"prompts": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}, "a name of its own"),
        ({"tree_budget": 1025}, "1024"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**settings)


def test_table_json_and_picture_show_every_set(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = _evaluate()
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report_table(report))
    text = console.export_text()
    for each in report.sets:
        assert each.name in text
        assert f"{each.acceptance_length:.2f}" in text
    report.write(tmp_path / "deep" / "report.json")
    stored = json.loads((tmp_path / "deep" / "report.json").read_text())
    assert stored["acceptance_length"] == report.acceptance_length
    assert stored["sets"][0]["streak_histogram"] == list(report.sets[0].streak_histogram)
    draw_report(report, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match=r"ends in \.png, \.svg, \.pdf"):
        draw_report(report, tmp_path / "report.docx")


def test_a_picture_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install tp_dflash\[plot\]"):
        draw_report(_evaluate(), tmp_path / "report.png")


def test_curves_for_a_training_log() -> None:
    report = _evaluate()
    assert report.figures()["acceptance_length"] == report.acceptance_length
    assert report.figures()["seven/acceptance_length"] == report.sets[0].acceptance_length
