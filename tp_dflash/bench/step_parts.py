"""Parts of a step measured alone: the drafter's forward and backward pass, the target's forward, bare matrix products.

In: a context. Out: seconds. The parts are training's own; only the features of the drafter alone are made up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tp_dflash.bench.spans import SpanRecorder, seconds_by_phase
from tp_dflash.bench.step_context import layout_of
from tp_dflash.bench.step_phases import mark_phases
from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.parallel import synchronise
from tp_dflash.streams.payload import Slot
from tp_dflash.target import Target
from tp_dflash.training.drafter_role import build_step
from tp_dflash.training.drafter_step import DrafterStep
from tp_dflash.training.run_context import RunContext
from tp_dflash.training.step_facts import exchange_step_facts
from tp_dflash.training.target_role import payload_shapes


@dataclass(frozen=True)
class DrafterAlone:
    """Median seconds of one micro-step, mean seconds of its phases; kernels: a table of one more, if asked for."""

    seconds: float
    phases: dict[str, float]
    kernels: str | None


@dataclass(frozen=True)
class TargetAlone:
    """Seconds and tokens of the packs that were run, nothing sent."""

    seconds: float
    tokens: int


def time_drafter(
    context: RunContext, warmup: int, repeats: int, begin: Callable[[torch.device], None], profile: bool
) -> DrafterAlone:
    """Forward and backward of one pack on every drafter rank, gradients dropped after each, no optimizer.

    ``begin`` is called with the device once warm, before the first measured repeat.
    """
    step, layout = build_step(context), layout_of(context, context.placement.drafters.index(context.rank))
    features = made_up_features(context, layout)
    recorder = SpanRecorder(context.device)
    mark_phases(step, recorder)

    def once() -> None:
        recorder.enter("assemble")
        run_micro_step(context, step, layout, features)
        recorder.enter("between")
        step.optimizer.zero_grad()

    for _ in range(warmup):
        once()
    begin(context.device)
    recorder.start()
    seconds = sorted(seconds_of(once, context.device) for _ in range(repeats))
    phases = seconds_by_phase(recorder.spans())
    phases.pop("between", None)
    means = {phase: total / repeats for phase, total in phases.items()}
    return DrafterAlone(seconds[repeats // 2], means, _kernels(once) if profile else None)


def _kernels(work: Callable[[], None]) -> str:
    with torch.profiler.profile() as profiler:
        work()
    key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=90))


def run_micro_step(context: RunContext, step: DrafterStep, layout: BlockLayout, features: FeatureBatch) -> None:
    """One micro-step with its facts exchanged, as the loop does it."""
    facts = exchange_step_facts([layout], 1, context.head_ranks, step.workers)
    step.micro_step(layout, features, facts.active_rows[0], facts.teacher_rows[0])


def made_up_features(context: RunContext, layout: BlockLayout) -> FeatureBatch:
    """Normal numbers of the target's dtype in place of a target's features."""
    generator = torch.Generator(context.device).manual_seed(context.rank)
    width, dtype = context.shape.hidden_size, context.facts.dtype

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=context.device).normal_(generator=generator)

    return FeatureBatch(
        pack_id=layout.pack.pack_id,
        features_TF=drawn(layout.pack.num_tokens, context.shape.feature_size),
        teacher_hidden_UD=drawn(layout.num_teacher_rows, width),
        anchor_embeddings_AD=drawn(layout.num_blocks, width),
    )


def time_target(context: RunContext, target: Target, pack_ids: Sequence[int]) -> TargetAlone:
    """The target over these packs of the first epoch, features written into two buffers in turn as a sender has them.

    On several ranks that hold one target together, all of them take part; the first has the features.
    """
    layouts = [layout_of(context, pack_id) for pack_id in pack_ids]
    slots = [Slot(payload_shapes(context), context.device) for _ in range(2)]

    def compute(index: int) -> None:
        if context.leads_target:
            target.features(layouts[index], slots[index % 2].batch(layouts[index]))
        else:
            target.follow(layouts[index])

    def all_packs() -> None:
        for index in range(len(layouts)):
            compute(index)

    compute(0)
    seconds = seconds_of(all_packs, context.device)
    return TargetAlone(seconds, sum(layout.pack.num_tokens for layout in layouts))


def matrix_flops_per_second(device: torch.device) -> float:
    """Rate of a square bf16 matrix product of random numbers: what the machine can do at best (8,192 wide on a GPU)."""
    size = 8192 if device.type == "cuda" else 256
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def products() -> None:
        for _ in range(20):
            torch.mm(left, right, out=out)

    products()
    return 20 * 2.0 * size**3 / min(seconds_of(products, device) for _ in range(3))


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """Wall time of ``work``, the device's work included."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started
