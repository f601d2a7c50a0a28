"""Measured beside planned: figures of a part of the benchmark, and the calibration that the planner reads.

In: readings of all ranks and the sizes that the planner sees. Out: plain dictionaries for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tp_dflash.bench.spans import seconds_by_phase
from tp_dflash.bench.step_memory import MemoryReading
from tp_dflash.bench.step_parts import DrafterAlone
from tp_dflash.bench.step_run import RankReading, target_only_rate, training_rate
from tp_dflash.planner import Calibration, RunSizes, plan_roles, predict_time
from tp_dflash.planner.byte_sizes import GIB
from tp_dflash.planner.step_time import attention_flops, head_flops, layer_flops, target_flops

_TERA = 1e12


def run_results(
    readings: Sequence[RankReading], sizes: RunSizes, calibration: Calibration, warmup: int
) -> dict[str, Any]:
    """Rates, phases and memory of a run beside the plan's. Errors are |plan / measured - 1|."""
    rate, step_seconds = training_rate(list(readings), warmup)
    alone = target_only_rate(list(readings))
    predicted = predict_time(sizes, calibration)
    return {
        "tokens_per_second": rate,
        "target_only_tokens_per_second": alone,
        "rate_vs_target_only": rate / alone,
        "step_seconds": step_seconds,
        "plan_tokens_per_second": predicted.tokens_per_second,
        "plan_step_seconds": predicted.step_seconds,
        "plan_time_error": _error(predicted.tokens_per_second, rate),
        "plan_memory_error": memory_errors([reading.memory for reading in readings], sizes, calibration),
        "ranks": [_rank_results(reading, sizes, calibration, warmup) for reading in readings],
    }


def memory_errors(memory: Sequence[MemoryReading], sizes: RunSizes, calibration: Calibration) -> dict[str, float]:
    """Largest error of the plan's peak over the ranks of each role."""
    planned = {role.role: role.peak_bytes for role in plan_roles(sizes, calibration)}
    errors: dict[str, float] = {}
    for reading in memory:
        error = _error(planned[reading.role], reading.total)
        errors[reading.role] = max(error, errors.get(reading.role, 0.0))
    return errors


def _rank_results(reading: RankReading, sizes: RunSizes, calibration: Calibration, warmup: int) -> dict[str, Any]:
    planned = {role.role: role for role in plan_roles(sizes, calibration)}[reading.role]
    return {
        "rank": reading.rank,
        "role": reading.role,
        "gpu": reading.gpu,
        "peak_gib": reading.memory.peak / GIB,
        "reserved_gib": reading.memory.reserved / GIB,
        "outside_gib": reading.memory.outside / GIB,
        "total_gib": reading.memory.total / GIB,
        "plan_gib": planned.peak_bytes / GIB,
        "target_waited_seconds": reading.target_waited,
        "drafter_waited_seconds": reading.drafter_waited,
        "streamed_gb": reading.streamed_bytes / 1e9,
        "seconds_by_phase": phases_after(reading, warmup),
        "step_tokens": reading.step_tokens,
        "step_ends": reading.step_ends(),
    }


def phases_after(reading: RankReading, warmup: int) -> dict[str, float]:
    """Seconds of each phase after the warm-up steps (of a rank that takes no steps: over all)."""
    ends = reading.step_ends()
    begin = ends[warmup - 1] if len(ends) > warmup else 0.0
    return seconds_by_phase([span for span in reading.spans if span.start >= begin])


def calibrate_drafter(
    alone: DrafterAlone, memory: MemoryReading, sizes: RunSizes, calibration: Calibration
) -> Calibration:
    """Rates of layers and head from the phases of the drafter alone; attention keeps its rate."""
    attention = attention_flops(sizes) / _TERA / calibration.attention_tflops
    layers = alone.phases["forward"] + alone.phases["backward"] + alone.phases["assemble"] - attention
    head = head_flops(sizes) / sizes.head_ranks * sizes.row_ranks / _TERA
    return calibration.model_copy(
        update={
            "drafter_tflops": layer_flops(sizes) / _TERA / layers,
            "head_tflops": head / alone.phases["head"],
            "outside_bytes": memory.outside,
        }
    )


def calibrate_target(seconds: float, tokens: int, sizes: RunSizes, calibration: Calibration) -> Calibration:
    """Rate of the target's forward from so many tokens, for each GPU."""
    flops = target_flops(sizes) / sizes.target_ranks * tokens / sizes.tokens
    return calibration.model_copy(update={"target_tflops": flops / _TERA / seconds})


def merge_results(
    path: Path, command: str, machine: str, versions: dict[str, str], part: str, figures: dict[str, float], detail: Any
) -> None:
    """Put a part's figures into the file, beside what other parts have written there."""
    content: dict[str, Any] = {"command": "", "machine": machine, "versions": {}, "figures": {}, "parts": {}}
    if path.is_file():
        content |= json.loads(path.read_text(encoding="utf-8"))
    content["machine"], content["versions"] = machine, versions
    content["figures"] |= {key: round(value, 5) for key, value in figures.items()}
    content["parts"][part] = {"command": command, "measured": detail}
    content["command"] = " && ".join(entry["command"] for entry in content["parts"].values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _error(planned: float, measured: float) -> float:
    return abs(planned / measured - 1)
