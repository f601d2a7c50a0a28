"""``tp-dflash bench head``: measures the sharded loss, its bare products and its rivals in one run.

Comes in: sizes, a group of ranks. Goes out: ``HeadResults``, the same on every rank except that only rank 0 has timed what
runs on one rank. Nothing is printed or written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.bench.head_accuracy import gradient_error
from tp_dflash.bench.head_problem import HeadProblem, HeadSizes, make_problem
from tp_dflash.bench.head_results import HeadResults, Timed
from tp_dflash.bench.head_steps import (
    compiled_step,
    cut_cross_entropy_step,
    installed,
    liger_ce_step,
    liger_jsd_step,
    plain_step,
    products_step,
    sharded_step,
)
from tp_dflash.bench.head_timing import Step, Stopwatch

# Plain torch holds about 22 bytes a logit; more rows than these do not fit beside the rest on a large GPU.
_PLAIN_ROWS = 8192
_ROWS_PER_TEACHER_ROW = 3


@dataclass(frozen=True)
class HeadBench:
    """Ranks that measure together. host_group: gloo, the same ranks; both groups None in a world of one."""

    sizes: HeadSizes
    group: ProcessGroup | None
    host_group: ProcessGroup | None
    rank: int
    num_ranks: int
    device: torch.device
    repeats: int
    more_rows: tuple[int, ...]

    def run(self, with_rivals: bool) -> HeadResults:
        """Measure everything; to be called by all ranks."""
        timed = self._sharded()
        if self.num_ranks > 1 or with_rivals:
            timed += self._alone(with_rivals)
        return HeadResults(
            sizes=self.sizes,
            num_ranks=self.num_ranks,
            timed=timed,
            extra_gib_by_rows=self._memory_by_rows(),
            errors={
                precision: gradient_error(self.group, self.host_group, self.device, precision)
                for precision in ("float32", "bfloat16")
            },
        )

    def _sharded(self) -> list[Timed]:
        """On all ranks: the loss and its products in turn, then both with shared teacher rows and with bf16 logits."""
        own = make_problem(self.sizes, self.rank, self.num_ranks, 1, self.device)
        shared = self._sharing(own)
        watch = Stopwatch(self.device, self.host_group, self.repeats)
        groups = (self.group, self.host_group)
        found = watch.measure(
            {
                "bare products": products_step(own),
                "sharded loss": sharded_step(own, *groups),
                "sharded loss, shared teacher rows": sharded_step(shared, *groups, shares_teachers=True),
                "bare products, bf16 logits": products_step(own, "bfloat16"),
                "sharded loss, bf16 logits": sharded_step(own, *groups, precision="bfloat16"),
            }
        )
        return [Timed(name, self.num_ranks, self.sizes.rows, 3, found[name]) for name in found]

    def _sharing(self, own: HeadProblem) -> HeadProblem:
        """The same rows and head, with every third of the teacher rows, each for three rows of different blocks."""
        rows = make_problem(
            replace(self.sizes, vocabulary=1),
            self.rank,
            self.num_ranks,
            _ROWS_PER_TEACHER_ROW,
            self.device,
        )
        return HeadProblem(
            self.sizes,
            own.hidden_ND,
            rows.teacher_hidden_UD,
            rows.teacher_index_N,
            own.labels_N,
            own.weights_N,
            own.head,
        )

    def _alone(self, with_rivals: bool) -> list[Timed]:
        """On rank 0 with the whole head: the sharded loss in a world of one, and the rivals."""
        timed: list[Timed] = []
        if self.rank == 0:
            problem = make_problem(self.sizes, 0, 1, 1, self.device)
            watch = Stopwatch(self.device, None, self.repeats)
            found = watch.measure(
                {"bare products": products_step(problem), "sharded loss": sharded_step(problem, None, None)}
            )
            timed = [Timed(name, 1, self.sizes.rows, 3, found[name]) for name in found]
            if with_rivals:
                timed += self._rivals(problem, watch)
        if self.host_group is not None:
            dist.barrier(group=self.host_group)
        return timed

    def _rivals(self, problem: HeadProblem, watch: Stopwatch) -> list[Timed]:
        few = make_problem(self.sizes.with_rows(min(_PLAIN_ROWS, self.sizes.rows), 1), 0, 1, 1, self.device)
        rivals: list[tuple[str, int, HeadProblem, Callable[[HeadProblem], Step]]] = [
            ("plain torch", 3, few, plain_step),
            ("compiled checkpointed chunks", 3, problem, compiled_step),
        ]
        if self.device.type == "cuda" and installed("liger_kernel"):
            rivals.append(("Liger fused linear JSD (KL only)", 3, problem, liger_jsd_step))
            rivals.append(("Liger fused linear CE (no teacher)", 2, problem, liger_ce_step))
        if self.device.type == "cuda" and installed("cut_cross_entropy"):
            rivals.append(("cut-cross-entropy (no teacher)", 2, problem, cut_cross_entropy_step))
        timed = []
        for name, products, inputs, make in rivals:
            timed.append(Timed(name, 1, inputs.sizes.rows, products, watch.measure({name: make(inputs)})[name]))
        return timed

    def _memory_by_rows(self) -> dict[int, float]:
        """Extra memory of the loss, GiB, at other numbers of rows (each rounded to whole blocks on every rank)."""
        found: dict[int, float] = {}
        for rows in self.more_rows:
            sizes = self.sizes.with_rows(rows, self.num_ranks)
            problem = make_problem(sizes, self.rank, self.num_ranks, 1, self.device)
            watch = Stopwatch(self.device, self.host_group, repeats=1)
            name = "sharded loss"
            found[sizes.rows] = watch.measure({name: sharded_step(problem, self.group, self.host_group)})[
                name
            ].extra_gib
        return found
