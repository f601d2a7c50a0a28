"""How long steps take and how much memory they add, on one rank or on all ranks of a group at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.parallel.device import synchronise

Step = Callable[[], None]


@dataclass(frozen=True)
class Measurement:
    """milliseconds: median over the repeats, of the slowest rank in each. extra_gib: most memory that a step held on top of
    its inputs, on the rank where that is most (0 on the CPU, where nobody counts)."""

    milliseconds: float
    extra_gib: float


@dataclass(frozen=True)
class Stopwatch:
    """Times steps on a device; with a ``host_group`` (gloo) all its ranks run each step together."""

    device: torch.device
    host_group: ProcessGroup | None
    repeats: int

    def measure(self, steps: dict[str, Step]) -> dict[str, Measurement]:
        """Each step once to warm up, then all of them in turn ``repeats`` times, so that a drift of the clocks hits all."""
        extra = {name: self._extra_bytes(step) for name, step in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(self.repeats):
            for name, step in steps.items():
                step()  # what a step follows must not be its neighbour: the same clocks and caches for all
                times[name].append(self._one(step))
        slowest = self._largest([time for name in steps for time in times[name]])
        most = self._largest([float(extra[name]) for name in steps])
        return {
            name: Measurement(statistics.median(slowest[i * self.repeats : (i + 1) * self.repeats]), most[i] / 2**30)
            for i, name in enumerate(steps)
        }

    def _one(self, step: Step) -> float:
        synchronise(self.device)
        if self.host_group is not None:
            dist.barrier(group=self.host_group)
        start = time.perf_counter()
        step()
        synchronise(self.device)
        return 1000.0 * (time.perf_counter() - start)

    def _extra_bytes(self, step: Step) -> int:
        step()
        synchronise(self.device)
        if self.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        step()
        synchronise(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def _largest(self, values: list[float]) -> list[float]:
        if self.host_group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.host_group)
        return list(tensor.tolist())
