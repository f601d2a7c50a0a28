"""The results of ``tp-dflash bench step`` as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def run_text(results: dict[str, Any]) -> str:
    """Rates, then one line a rank: memory beside the plan's, and where its time went."""
    lines = [
        f"training {results['tokens_per_second']:,.0f} tokens/s, a step of {results['step_seconds']:.3f} s; plan "
        f"{results['plan_tokens_per_second']:,.0f} tokens/s, {results['plan_step_seconds']:.3f} s",
        f"targets alone {results['target_only_tokens_per_second']:,.0f} tokens/s: training runs at "
        f"{100 * results['rate_vs_target_only']:.1f}% of it",
    ]
    for rank in results["ranks"]:
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in rank["seconds_by_phase"].items())
        lines.append(
            f"rank {rank['rank']} {rank['role']}: peak {rank['total_gib']:.2f} GiB ({rank['peak_gib']:.2f} in tensors, "
            f"{rank['outside_gib']:.2f} outside; {rank['reserved_gib']:.2f} reserved), plan {rank['plan_gib']:.2f}"
        )
        lines.append(f"  seconds: {phases}")
    return "\n".join(lines)


def peak_text(tensors: Sequence[tuple[int, str]], most: int = 30) -> str:
    """What was alive at the peak, largest first."""
    lines = ["alive at the peak, GiB:"]
    lines += [f"  {size / 2**30:8.3f}  {place}" for size, place in tensors[:most]]
    rest = sum(size for size, _ in tensors[most:])
    return "\n".join([*lines, f"  {rest / 2**30:8.3f}  the rest"])
