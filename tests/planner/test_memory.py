"""The memory plan: hand-made numbers of the 27B shapes, what was measured of them, and how lines move with settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planner.plans import COLOCATED, ONE_AND_ONE, verdict_of
from tp_dflash.planner import plan_text, predict_time
from tp_dflash.planner.byte_sizes import GIB
from tp_dflash.planner.role_plan import RolePlan

MEASURED = json.loads((Path(__file__).parents[2] / "docs" / "results" / "step.json").read_text(encoding="utf-8"))


def _role(verdict, name: str) -> RolePlan:  # type: ignore[no-untyped-def]
    return next(role for role in verdict.roles if role.role == name)


def _bytes(role: RolePlan, name: str) -> int:
    return sum(line.num_bytes for line in role.lines if line.name == name)


def test_lines_of_the_27b_drafter_are_these_numbers() -> None:
    drafter = _role(verdict_of(settings=ONE_AND_ONE), "drafter")
    layer = 2 * 5120 * (5120 + 1024) + 2 * 128 + 3 * 5120 * 17408 + 2 * 5120
    parameters = 5 * layer + 5 * 5120 * 5120 + 2 * 5120
    n, m = 1024 * 24, 65536 + 1024 * 24
    expected = {
        "drafter weights, fp32 masters": 4 * parameters,
        "AdamW moments, fp32": 8 * parameters,
        "drafter gradients, fp32": 4 * parameters,
        "lm_head shard": 248320 * 5120 * 2,
        "logits chunk, drafter": 1024 * 248320 * 4,
        "activations": 5 * 2 * (n * (7 * 5120 + 2 * 17408) + 3 * m * 1024),
        "context features": 2 * 5120 * (5 * 65536 + n + 1024),
        "context, before and after its norm": 2 * 65536 * 5120 * 2,
    }
    assert {name: _bytes(drafter, name) for name in expected} == expected


def test_target_weights_are_counted_without_the_head() -> None:
    target = _role(verdict_of(settings=ONE_AND_ONE), "target")
    layer = 2 * 5120 * (5120 + 1024) + 2 * 128 + 3 * 5120 * 17408 + 2 * 5120
    assert _bytes(target, "target weights") == 2 * (64 * layer + 248320 * 5120 + 5120)


@pytest.mark.parametrize(
    ("part", "settings"), [("steps", ONE_AND_ONE), ("colocated", COLOCATED)], ids=["1 + 1", "colocated"]
)
def test_peaks_are_within_5_percent_of_the_measured_ones(part: str, settings: tuple[str, ...]) -> None:
    verdict = verdict_of(settings=(*settings, "data.max_length=2048"))
    for rank in MEASURED["parts"][part]["measured"]["ranks"]:
        assert _role(verdict, rank["role"]).peak_bytes / GIB == pytest.approx(rank["total_gib"], rel=0.05)


def test_the_dense_loss_is_said_to_run_out_where_it_did() -> None:
    settings = ("placement.target=colocated", "placement.drafter=0", "placement.tensor_parallel=1")
    verdict = verdict_of(settings=settings)
    assert MEASURED["parts"]["dense"]["measured"]["out_of_memory"]
    assert verdict.dense_peak_bytes > verdict.usable_bytes
    small = verdict_of("qwen3-8b-single-gpu", ("anchors.per_pack=64",))
    assert small.dense_peak_bytes < small.usable_bytes


@pytest.mark.parametrize("name", ["qwen3.6-27b-ddtree", "qwen3-8b"])
def test_every_peak_is_the_sum_of_its_moment_and_the_largest(name: str) -> None:
    for role in verdict_of(name).roles:
        at_peak = sum(line.num_bytes for line in role.lines if role.peak_moment in line.moments)
        assert role.peak_bytes == at_peak
        assert all(
            role.peak_bytes >= role.held_at(moment)
            for moment in ("features", "head", "backward", "gradients", "update")
        )


def test_sharding_divides_what_is_sharded() -> None:
    one = _role(verdict_of(settings=ONE_AND_ONE), "drafter")
    two = _role(verdict_of(), "drafter")
    for name in ("drafter weights, fp32 masters", "AdamW moments, fp32", "lm_head shard"):
        assert _bytes(two, name) == _bytes(one, name) / 2
    assert _bytes(two, "activations") == _bytes(one, "activations")
    nodes = _role(verdict_of("qwen3.6-27b-2x8", nodes=2), "drafter")
    assert _bytes(nodes, "AdamW moments, fp32") == _bytes(one, "AdamW moments, fp32") / 4


def test_copies_by_node_are_shared_by_one_nodes_drafters() -> None:
    """Two drafters a node: however many nodes, a rank holds half of the drafter's state, and is told how to hold less."""
    copied = ("placement.drafter_shards=node",)
    for nodes in (1, 2, 4):
        verdict = verdict_of("qwen3.6-27b-2x8", copied, nodes=nodes)
        drafter, alone = _role(verdict, "drafter"), _role(verdict_of("qwen3.6-27b-2x8"), "drafter")
        for name in ("drafter weights, fp32 masters", "AdamW moments, fp32", "drafter gradients, fp32"):
            assert _bytes(drafter, name) == _bytes(alone, name)
        spread = _role(verdict_of("qwen3.6-27b-2x8", nodes=nodes), "drafter")
        assert _bytes(drafter, "AdamW moments, fp32") == nodes * _bytes(spread, "AdamW moments, fp32")
    colocated = ("placement.target=colocated", *copied)
    tried = verdict_of("qwen3.6-27b-2x8", colocated, nodes=4).tried[0]
    assert tried.remedy.changes == {"placement.drafter_shards": "all"}
    assert tried.saving > 4 * 2**30


def test_a_head_only_rank_holds_a_shard_and_chunks_alone() -> None:
    verdict = verdict_of(settings=("placement.head=5,6,7",))
    head = _role(verdict, "head-only")
    assert _bytes(head, "lm_head shard") == 82774 * 5120 * 2
    assert _bytes(head, "activations") == 0
    assert head.peak_moment == "head"
    assert _bytes(_role(verdict, "drafter"), "lm_head shard") == 82774 * 5120 * 2


def test_ranks_that_share_a_target_hold_its_norms_and_table_whole() -> None:
    settings = ("placement.target=0-3", "placement.drafter=4,5")
    whole, shared = (verdict_of(settings=(*settings, f"placement.target_tensor_parallel={n}")) for n in (1, 4))
    table_and_norms = 248320 * 5120 + 64 * (2 * 128 + 2 * 5120) + 5120
    first, second = (_bytes(_role(verdict, "target"), "target weights") // 2 for verdict in (whole, shared))
    assert second - table_and_norms == (first - table_and_norms) / 4
    assert (whole.sizes.num_targets, shared.sizes.num_targets) == (4, 1)
    alone, together = (predict_time(verdict.sizes, verdict.calibration).target for verdict in (whole, shared))
    exchange = 2 * 64 * 65536 * 5120 * 2 * 1.5 / 300e9
    assert together == pytest.approx(alone / 4 + exchange)
    assert "1 target(s) of 4 ranks each" in plan_text(shared)


def test_a_target_that_is_too_large_is_spread_over_more_gpus() -> None:
    small = ("data.token_budget=8192", "data.max_length=2048", "target.tokens_per_forward=2048", "anchors.per_pack=256")
    verdict = verdict_of(settings=("placement.target=0", "placement.drafter=6,7", *small), memory="48GiB")
    remedy = next(tried for tried in verdict.tried if "each target over" in tried.remedy.name)
    assert remedy.fits
    assert remedy.remedy.changes == {"placement.target_tensor_parallel": 2, "placement.target": "0,1"}
    changes = ("placement.target_tensor_parallel=2", "placement.target=0,1")
    assert verdict_of(settings=("placement.drafter=6,7", *small, *changes), memory="48GiB").fits


def test_accumulation_keeps_gradients_through_the_backward_pass() -> None:
    once, twice = (_role(verdict_of(settings=(f"training.accumulation={a}",)), "drafter") for a in (1, 2))
    assert twice.peak_bytes - once.peak_bytes == _bytes(once, "drafter gradients, fp32")


def test_bf16_logits_halve_the_chunks() -> None:
    full, half = (
        _role(verdict_of(settings=(f'training.logits_precision="{p}"',)), "drafter") for p in ("float32", "bfloat16")
    )
    for name in ("logits chunk, drafter", "logits chunk, teacher"):
        assert 2 * _bytes(half, name) == _bytes(full, name)


def test_muon_keeps_one_moment_of_a_matrix() -> None:
    adamw, muon = (_role(verdict_of(settings=(f'optimizer.name="{name}"',)), "drafter") for name in ("adamw", "muon"))
    both = _bytes(adamw, "AdamW moments, fp32")
    assert 0.5 < _bytes(muon, "Muon momentum, AdamW moments of norms, fp32") / both < 0.501
