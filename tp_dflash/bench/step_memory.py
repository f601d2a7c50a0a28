"""What a rank holds at its peak, and what of: the measured side of the plan.

In: the allocator's records. Out: numbers, and the tensors that were alive at the peak, grouped by the line that made them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from tp_dflash.parallel.device import peak_memory_bytes

_TRACE_EVENTS = 400_000


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of one rank. peak: most that tensors held at once; reserved: most that the allocator took for them; outside:
    CUDA context, libraries and NCCL, which the allocator knows nothing of. On the CPU peak is the process's resident set."""

    rank: int
    role: str
    peak: int
    reserved: int
    outside: int

    @property
    def total(self) -> int:
        """What the plan's peak stands for."""
        return self.peak + self.outside


def read_memory(rank: int, role: str, device: torch.device) -> MemoryReading:
    """The peak since ``forget_peak``; call it while the groups are still open."""
    peak = peak_memory_bytes(device)
    if device.type != "cuda":
        return MemoryReading(rank, role, peak, peak, 0)
    free, whole = torch.cuda.mem_get_info(device)
    outside = whole - free - torch.cuda.memory_reserved(device)
    return MemoryReading(rank, role, peak, torch.cuda.max_memory_reserved(device), outside)


def forget_peak(device: torch.device) -> None:
    """Start to look for the peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def cap_memory(device: torch.device, gpu_bytes: int) -> None:
    """Let the allocator take no more than ``gpu_bytes`` of the device, as if it were that small."""
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gpu_bytes / whole), device)


def start_trace(device: torch.device) -> None:
    """Record every allocation with the Python lines that led to it."""
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=_TRACE_EVENTS, stacks="python")


def peak_tensors(device: torch.device) -> list[tuple[int, str]]:
    """(bytes, where) of what was alive at the peak since ``start_trace``, largest first; ends the trace.

    Tensors made before the trace are missing, as they are in every moment of it.
    """
    if device.type != "cuda":
        return []
    snapshot = torch.cuda.memory._snapshot(device)
    torch.cuda.memory._record_memory_history(enabled=None)
    events = snapshot["device_traces"][device.index]
    held = _alive_at_peak(events)
    by_place: Counter[str] = Counter()
    for event in held:
        by_place[_place(event)] += event["size"]
    return [(size, place) for place, size in by_place.most_common()]


def _alive_at_peak(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replayed twice: once to find the peak, once up to it."""
    now = most = peak_index = 0
    alive: dict[int, dict[str, Any]] = {}
    for index, event in enumerate(events):
        now += _apply(event, alive)
        if now > most:
            most, peak_index = now, index
    alive = {}
    for event in events[: peak_index + 1]:
        _apply(event, alive)
    return list(alive.values())


def _apply(event: dict[str, Any], alive: dict[int, dict[str, Any]]) -> int:
    """The change in bytes; frees of what was made before the trace change nothing."""
    if event["action"] == "alloc":
        alive[event["addr"]] = event
        return int(event["size"])
    if event["action"] == "free_completed" and event["addr"] in alive:
        return -int(alive.pop(event["addr"])["size"])
    return 0


def _place(event: dict[str, Any]) -> str:
    ours = [
        frame for frame in event["frames"] if "tp_dflash" in frame["filename"] and "/bench/" not in frame["filename"]
    ]
    frames = ours[:2] or event["frames"][:2]
    return " < ".join(f"{frame['filename'].rpartition('tp_dflash/')[2]}:{frame['line']}" for frame in frames)
