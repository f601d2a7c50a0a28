"""The step benchmark at tiny sizes on gloo ranks: every part runs, and its readings are consistent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.bench.made_up_documents import MadeUpDocuments, full_packs, uneven_packs
from tp_dflash.bench.spans import Span, seconds_by_phase
from tp_dflash.bench.step_command import StepBench
from tp_dflash.bench.step_memory import MemoryReading, _alive_at_peak
from tp_dflash.bench.step_run import STEP_DONE, WAIT, RankReading, training_rate
from tp_dflash.config.load import parse_config
from tp_dflash.placement import Placement
from tp_dflash.planner import Calibration

SETTINGS: dict[str, Any] = {
    "target": {
        "random_weights": True,
        "dtype": "float32",
        "tokens_per_forward": 64,
        "shape": {
            "model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 16, "intermediate_size": 24,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 41,
            "max_position_embeddings": 64, "tie_word_embeddings": False,
        },
    },
    "drafter": {"mask_token_id": 40, "block_size": 4, "num_layers": 1},
    "data": {"train": "none.jsonl", "token_budget": 64, "max_length": 16},
    "anchors": {"per_pack": 4},
    "training": {"compute_dtype": "float32", "head_chunk_rows": 8, "timeout_seconds": 30.0},
}  # fmt: skip


def _bench(rank: int, placement: dict[str, Any], part: str, out: str, changes: dict[str, Any]) -> None:
    config = parse_config({**SETTINGS, "placement": placement, **changes})
    world = dist.get_world_size()
    bench = StepBench(
        config=config,
        placement=Placement.resolve(config.placement, world, world),
        rank=rank,
        steps=2,
        warmup=1,
        document_tokens=16,
        gpu_bytes=None,
        calibration=Calibration(),
        out=Path(out),
        command="bench",
        explain=False,
    )
    {"steps": bench.run_steps, "drafter": bench.run_drafter, "target": bench.run_target}[part]()


def _figures(
    tmp_path: Path, world: int, placement: dict[str, Any], part: str, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    out = tmp_path / "step.json"
    run_ranks(_bench, world, placement, part, str(out), changes or {})
    return json.loads(out.read_text(encoding="utf-8"))


def test_whole_steps_over_a_stream_give_rates_memory_and_a_picture(tmp_path: Path) -> None:
    content = _figures(tmp_path, 3, {"target": "0", "drafter": "1", "head": "1,2"}, "steps")
    measured = content["parts"]["steps"]["measured"]
    assert [rank["role"] for rank in measured["ranks"]] == ["target", "drafter", "head-only"]
    assert set(content["figures"]) >= {"rate_vs_target_only", "plan_time_error", "plan_memory_error_target"}
    drafter = measured["ranks"][1]
    assert set(drafter["seconds_by_phase"]) >= {WAIT, "assemble", "forward", "head", "backward", "update"}
    assert len(drafter["step_ends"]) == len(drafter["step_tokens"]) == 3
    assert sorted(drafter["step_ends"]) == drafter["step_ends"]
    assert (tmp_path / "steps-timeline.png").stat().st_size > 1000


def test_two_ranks_that_hold_one_target_are_measured_as_one(tmp_path: Path) -> None:
    shape = {**SETTINGS["target"]["shape"], "num_key_value_heads": 2}
    content = _figures(
        tmp_path,
        3,
        {"target": "0,1", "drafter": "2", "target_tensor_parallel": 2},
        "steps",
        {"target": {**SETTINGS["target"], "shape": shape}},
    )
    leader, follower, _ = content["parts"]["steps"]["measured"]["ranks"]
    assert leader["streamed_gb"] > follower["streamed_gb"] == 0
    assert follower["peak_gib"] <= leader["peak_gib"]


def test_parts_add_to_one_file_and_one_calibration(tmp_path: Path) -> None:
    alone = {"target": "colocated", "drafter": "0"}
    _figures(tmp_path, 1, alone, "drafter")
    content = _figures(tmp_path, 1, alone, "target")
    assert set(content["figures"]) == {"drafter_step_ms", "drafter_step_gib", "target_share_of_peak"}
    calibration = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    assert calibration["target_tflops"] != Calibration().target_tflops
    assert calibration["head_tflops"] != Calibration().head_tflops


def _reading(spans: list[Span], tokens: list[int]) -> RankReading:
    return RankReading(1, "drafter", 0, MemoryReading(1, "drafter", 0, 0, 0), spans, None, tokens)


def _steps(waits: list[float], work: float) -> list[Span]:
    spans, now = [], 0.0
    for wait in waits:
        spans += [Span(WAIT, 0, now, now + wait), Span("forward", 0, now + wait, now + wait + work)]
        now += wait + work
        spans.append(Span(STEP_DONE, -1, now, now))
    return spans


def test_packs_in_stock_do_not_count_as_speed() -> None:
    """Targets need 5 s a pack; step 0 takes 20 s, so that steps 1 and 2 find their packs waiting."""
    spans = [Span(WAIT, 0, 0, 5), Span("forward", 0, 5, 25), Span(STEP_DONE, -1, 25, 25)]
    for start, wait in ((25, 0.0), (26, 0.0), (27, 3.0), (31, 4.0), (36, 4.0)):
        spans += [Span(WAIT, 0, start, start + wait), Span(STEP_DONE, -1, start + wait + 1, start + wait + 1)]
    rate, seconds = training_rate([_reading(spans, [100] * 6)], warmup=1)
    assert (rate, seconds) == (pytest.approx(20.0), pytest.approx(5.0))


def test_drafters_that_never_wait_are_timed_from_end_to_end() -> None:
    rate, seconds = training_rate([_reading(_steps([0.0] * 5, 2.0), [100] * 5)], warmup=2)
    assert (rate, seconds) == (pytest.approx(50.0), pytest.approx(2.0))


def test_seconds_add_up_by_phase() -> None:
    assert seconds_by_phase(_steps([1.0, 2.0], 3.0)) == {WAIT: 3.0, "forward": 6.0, STEP_DONE: 0.0}


def test_the_trace_is_replayed_to_its_peak() -> None:
    def event(action: str, addr: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size}

    events = [
        event("free_completed", 9, 50),
        event("alloc", 1, 10),
        event("alloc", 2, 30),
        event("free_completed", 1, 10),
        event("alloc", 1, 25),
        event("free_completed", 2, 30),
        event("alloc", 3, 20),
    ]
    assert sorted(found["size"] for found in _alive_at_peak(events)) == [25, 30]


def test_made_up_documents_are_the_same_everywhere_and_never_hold_the_mask_token() -> None:
    lengths = full_packs(3, 64, 20)
    assert lengths.sum() == 3 * 64
    store = MadeUpDocuments(lengths, 41, 17)
    first, again = store.document(2), MadeUpDocuments(lengths, 41, 17).document(2)
    assert first.tokens_S.tolist() == again.tokens_S.tolist()
    tokens = np.concatenate([store.document(index).tokens_S.numpy() for index in range(len(lengths))])
    assert 17 not in tokens
    assert tokens.min() >= 0
    assert tokens.max() < 41
    uneven = uneven_packs(4, 64, 20)
    assert uneven.sum() >= 4 * 64
    assert 15 <= uneven.min() <= uneven.max() <= 20
