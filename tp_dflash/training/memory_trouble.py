"""Before and after the memory runs out: refuse a run that cannot fit, and say what to change when one did not.

In: the configuration, the placement, what the planner makes of them, the phase a rank was in. Out: one error in words.
"""

from __future__ import annotations

import os

import torch

from tp_dflash.config.run import RunConfig
from tp_dflash.placement import Placement
from tp_dflash.planner import Calibration, Verdict, check_fits, in_gib
from tp_dflash.training.phase import Phase, PhaseName

_MOMENTS: dict[PhaseName, tuple[str, ...]] = {
    "features": ("features",),
    "head": ("head",),
    "backward": ("backward", "gradients"),
    "update": ("update",),
}


class OutOfMemory(RuntimeError):  # noqa: N818 - it says what happened
    """A rank ran out of memory; the message says when, what the plan said, and the cheapest change."""


def check_memory(config: RunConfig, placement: Placement, gpu_bytes: int) -> Verdict:
    """The plan's verdict; OutOfMemory before anything is loaded if a role does not fit GPUs of ``gpu_bytes``."""
    verdict = check_fits(config, placement, gpu_bytes, Calibration())
    if not verdict.fits:
        raise OutOfMemory(
            f"the plan {verdict.summary()}; {_change(verdict)}. `tp-dflash plan CONFIG --gpu-memory "
            f"{gpu_bytes // 2**30}GiB` shows every line; --force starts anyway"
        )
    return verdict


def explain(
    error: torch.OutOfMemoryError | MemoryError,
    phase: Phase,
    role: str,
    config: RunConfig,
    placement: Placement,
    device: torch.device,
) -> OutOfMemory:
    """What to tell in place of the allocator's message, which is quoted at the end."""
    lines = [f"out of memory in {phase} on a {role} rank"]
    gpu_bytes = _device_bytes(device)
    verdict = check_fits(config, placement, gpu_bytes, Calibration())
    plan = next(plan for plan in verdict.roles if plan.role == role)
    moments = _MOMENTS.get(phase.name, ())
    if moments:
        expected = max(sum(line.num_bytes for line in plan.lines if moment in line.moments) for moment in moments)
        lines.append(f"the plan says {in_gib(expected)} for this phase and {in_gib(plan.peak_bytes)} at the peak")
    else:
        lines.append(f"the plan says {in_gib(plan.peak_bytes)} at the peak of a step; this phase is outside its steps")
    if device.type == "cuda":
        held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        lines.append(f"{in_gib(held)} are in tensors, {in_gib(reserved)} reserved, of {in_gib(gpu_bytes)}")
    lines.append(_change(verdict))
    lines.append(f"the allocator said: {str(error).strip() or type(error).__name__}")
    return OutOfMemory("\n  ".join(lines))


def _change(verdict: Verdict) -> str:
    """The cheapest change that helps: one that makes the plan fit if it does not, else the first that saves anything."""
    if not verdict.tried:
        return "no setting of the planner's makes it smaller; use more or larger GPUs"
    best = next((tried for tried in verdict.tried if tried.fits), verdict.tried[0])
    remedy = best.remedy
    return (
        f"cheapest change: {remedy.name} ({remedy.settings}), which saves {in_gib(best.saving)} and costs {remedy.cost}"
    )


def _device_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
