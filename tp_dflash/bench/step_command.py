"""The four parts of ``tp-dflash bench step``: run, print, write.

In: a configuration, a placement, this process's rank. Out: text on the first rank's terminal, figures in a JSON file, a
calibration file and a picture beside it.
"""

from __future__ import annotations

import json
import math
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tp_dflash.bench.made_up_documents import full_packs, uneven_packs
from tp_dflash.bench.step_context import build_bench_context
from tp_dflash.bench.step_dense import try_dense
from tp_dflash.bench.step_memory import MemoryReading, cap_memory, forget_peak, peak_tensors, read_memory, start_trace
from tp_dflash.bench.step_parts import matrix_flops_per_second, time_drafter, time_target
from tp_dflash.bench.step_report import peak_text, run_text
from tp_dflash.bench.step_results import calibrate_drafter, calibrate_target, merge_results, run_results
from tp_dflash.bench.step_run import run_steps
from tp_dflash.bench.step_timeline import draw_timeline
from tp_dflash.config.run import RunConfig
from tp_dflash.parallel import pick_device
from tp_dflash.parallel.versions import versions
from tp_dflash.placement import Placement
from tp_dflash.planner import Calibration, RunSizes, check_fits
from tp_dflash.planner.byte_sizes import GIB, in_gib
from tp_dflash.planner.step_time import target_flops
from tp_dflash.training.run_context import RunContext
from tp_dflash.training.target_role import load_target

_TERA = 1e12


@dataclass(frozen=True)
class StepBench:
    """One call of the command on one rank."""

    config: RunConfig
    placement: Placement
    rank: int
    steps: int
    warmup: int
    document_tokens: int
    gpu_bytes: int | None
    calibration: Calibration
    out: Path
    command: str
    explain: bool

    def run_steps(self) -> None:
        """Whole steps on all roles; figures, timeline and calibration."""
        per_step = len(self.placement.drafters) * self.config.training.accumulation
        num_steps = self.warmup + self.steps
        context = self._context(uneven_packs(num_steps * per_step, self._budget, self.document_tokens), num_steps)
        readings = run_steps(context, self.warmup)
        results = run_results(readings, self.sizes, self.calibration, self.warmup)
        if self.rank:
            return
        print(run_text(results))
        draw_timeline(readings, self.warmup, self._title, self.out.with_name(f"{self._part}-timeline.png"))
        errors = {
            f"plan_memory_error_{_ROLE_KEYS[role]}": error for role, error in results["plan_memory_error"].items()
        }
        figures = errors | (
            {}
            if self.placement.colocated
            else {key: results[key] for key in ("rate_vs_target_only", "plan_time_error")}
        )
        self._write(self._part, figures, results)

    def run_drafter(self) -> None:
        """The drafter's forward and backward pass alone: full packs, no update."""
        context = self._context(full_packs(len(self.placement.drafters), self._budget, self.document_tokens), 1)
        alone = time_drafter(context, self.warmup, self.steps, self._begin_measuring, self.explain)
        memory = read_memory(self.rank, context.place.role, context.device)
        if self.explain and self.rank == 0:
            print(peak_text(peak_tensors(context.device)))
            print(alone.kernels)
        if self.rank:
            return
        ranks = len(self.placement.drafters)
        phases = ", ".join(f"{phase} {1000 * seconds:.0f}" for phase, seconds in alone.phases.items())
        print(
            f"drafter alone on {ranks} rank(s): {1000 * alone.seconds:.0f} ms a pack ({phases}), peak {in_gib(memory.peak)} "
            f"in tensors, {in_gib(memory.outside)} outside, {in_gib(memory.reserved)} reserved"
        )
        self._write_calibration(calibrate_drafter(alone, memory, self.sizes, self.calibration))
        detail = {
            "milliseconds": 1000 * alone.seconds,
            "phases": alone.phases,
            "peak_gib": memory.peak / GIB,
            "ranks": ranks,
        }
        self._write(f"drafter, {ranks} rank(s)", self._drafter_figures(ranks, alone.seconds, memory), detail)

    def run_target(self) -> None:
        """The target's forward alone, beside the machine's best matrix product."""
        context = self._context(
            full_packs(self.steps * len(self.placement.targets), self._budget, self.document_tokens), 1
        )
        rate = matrix_flops_per_second(context.device)
        target = load_target(context)
        forget_peak(context.device)
        alone = time_target(context, target, list(range(self.steps)))
        flops = target_flops(self.sizes) / self.sizes.target_ranks * alone.tokens / self.sizes.tokens
        memory = read_memory(self.rank, context.place.role, context.device)
        if self.rank:
            return
        share = flops / alone.seconds / rate
        print(
            f"target alone: {alone.tokens / alone.seconds:,.0f} tokens/s, {flops / alone.seconds / _TERA:.0f} TFLOP/s of counted "
            f"work, {100 * share:.1f}% of a matrix product's {rate / _TERA:.0f}; peak {in_gib(memory.peak)} in tensors, "
            f"{in_gib(memory.outside)} outside"
        )
        self._write_calibration(calibrate_target(alone.seconds, alone.tokens, self.sizes, self.calibration))
        detail = {
            "tokens_per_second": alone.tokens / alone.seconds,
            "tflops": flops / alone.seconds / _TERA,
            "matrix_tflops": rate / _TERA,
            "peak_gib": memory.peak / GIB,
        }
        self._write("target", {"target_share_of_peak": share}, detail)

    def run_dense(self) -> None:
        """Whole logits under the same cap; the plan must have said whether they fit."""
        context = self._context(full_packs(1, self._budget, self.document_tokens), 1)
        gpu_bytes = self.gpu_bytes or torch.cuda.get_device_properties(context.device).total_memory
        verdict = check_fits(self.config, self.placement, gpu_bytes, self.calibration)
        expected = verdict.dense_peak_bytes <= verdict.usable_bytes
        failure = try_dense(context)
        if self.rank:
            return
        print(
            f"whole logits: the plan says {'fits' if expected else 'runs out of memory'} ({in_gib(verdict.dense_peak_bytes)})"
        )
        print(f"whole logits: {'it ran' if failure is None else failure}")
        detail = {"plan_gib": verdict.dense_peak_bytes / GIB, "plan_fits": expected, "out_of_memory": failure}
        self._write("dense", {"dense_plan_right": float(expected == (failure is None))}, detail)

    @cached_property
    def sizes(self) -> RunSizes:
        """What the planner sees of the same configuration."""
        return RunSizes.of(self.config, self.placement)

    @property
    def _budget(self) -> int:
        return self.config.data.token_budget

    @property
    def _part(self) -> str:
        return "colocated" if self.placement.colocated else "steps"

    @property
    def _title(self) -> str:
        targets, drafters = len(self.placement.targets), len(self.placement.drafters)
        kind = f"{drafters} colocated" if self.placement.colocated else f"{targets} target + {drafters} drafter"
        return (
            f"{kind}: T = {self._budget:,}, {self.config.anchors.per_pack} anchors x {self.config.drafter.block_size}"
        )

    def _context(self, lengths: np.ndarray, num_steps: int) -> RunContext:
        if self.gpu_bytes is not None:
            # What lies outside the allocator is on the GPU too.
            outside = self.calibration.outside_bytes + self.calibration.communication_bytes
            cap_memory(pick_device(self.placement.places[self.rank].gpu), self.gpu_bytes - outside)
        return build_bench_context(self.config, self.placement, self.rank, lengths, num_steps)

    def _begin_measuring(self, device: torch.device) -> None:
        forget_peak(device)
        if self.explain:
            start_trace(device)

    def _drafter_figures(self, ranks: int, seconds: float, memory: MemoryReading) -> dict[str, float]:
        """One rank: time and memory. Several sharing the head: packs a second over those of one rank, from the file."""
        if ranks == 1:
            return {"drafter_step_ms": 1000 * seconds, "drafter_step_gib": memory.peak / GIB}
        if not self.out.is_file():
            return {}
        figures = json.loads(self.out.read_text(encoding="utf-8"))["figures"]
        alone = figures.get("drafter_step_ms", math.nan)
        return {"drafter_step_tp_speedup": ranks * alone / (1000 * seconds)} if alone == alone else {}

    def _write(self, part: str, figures: dict[str, float], detail: Any) -> None:
        machine = platform.platform()
        if torch.cuda.is_available():
            machine = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        merge_results(self.out, self.command, machine, versions(), part, figures, detail)
        print(f"figures in {self.out}")

    def _write_calibration(self, measured: Calibration) -> None:
        """Beside the figures; parts that run one after the other add to one file."""
        path = self.out.with_name("calibration.json")
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else self.calibration.model_dump()
        changed = {
            key: value for key, value in measured.model_dump().items() if value != self.calibration.model_dump()[key]
        }
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept | changed | {"gpu": name}, indent=2) + "\n", encoding="utf-8")


_ROLE_KEYS = {"target": "target", "drafter": "drafter", "head-only": "head_only", "target + drafter": "colocated"}
