"""``tp-dflash bench step``: whole training steps at a configuration's shapes, with made-up tokens, beside the plan."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Part(StrEnum):
    """What is measured."""

    steps = "steps"
    drafter = "drafter"
    target = "target"
    dense = "dense"


def bench_step(
    config: Annotated[Path, typer.Argument(help="TOML configuration; its data section gives sizes only.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat for more.")] = None,
    part: Annotated[
        Part,
        typer.Option(
            help="steps: whole training steps, all roles; drafter: its forward and backward pass alone; target: its "
            "forward alone, beside the machine's matrix rate; dense: the drafter with whole logits, to see it fail."
        ),
    ] = Part.steps,
    steps: Annotated[int, typer.Option(min=1, help="Steps (packs, repeats) that are measured.")] = 5,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before that.")] = 4,
    document_tokens: Annotated[
        int, typer.Option(min=2, help="Longest made-up document, at most data.max_length.")
    ] = 2048,
    gpu_memory: Annotated[str | None, typer.Option(help="Cap on each GPU, such as 95GiB.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Calibration that the plan uses; default: an H200.")] = None,
    out: Annotated[Path, typer.Option(help="JSON file that the figures are merged into.")] = Path(
        "runs/bench/step.json"
    ),
    explain: Annotated[
        bool, typer.Option(help="With drafter: also list what is alive at its peak, and its kernels by time.")
    ] = False,
) -> None:
    """Measure steps with made-up tokens: tokens/s, time by phase, peak memory by rank beside the plan's, target-only rate.

    Start it under torchrun as the placement asks, or alone for a placement of one rank.
    """
    from tp_dflash.bench.step_command import StepBench
    from tp_dflash.cli.world import World, joined, leaving_at_once
    from tp_dflash.config.load import load_config
    from tp_dflash.placement import Placement
    from tp_dflash.planner import Calibration, parse_bytes, read_calibration

    world = World.from_environment()
    run = load_config(config, [*(overrides or ()), f"data.max_length={document_tokens}"])
    placement = Placement.resolve(run.placement, world.world_size, world.local_world_size)
    with (
        leaving_at_once(f"rank {world.rank}, {placement.places[world.rank].role}"),
        joined(world, run.training.timeout_seconds),
    ):
        bench = StepBench(
            config=run,
            placement=placement,
            rank=world.rank,
            steps=steps,
            warmup=warmup,
            document_tokens=document_tokens,
            gpu_bytes=parse_bytes(gpu_memory) if gpu_memory else None,
            calibration=read_calibration(calibration) if calibration else Calibration(),
            out=out,
            command=f"torchrun --nproc-per-node {world.local_world_size} -m tp_dflash {_arguments()}",
            explain=explain,
        )
        {
            Part.steps: bench.run_steps,
            Part.drafter: bench.run_drafter,
            Part.target: bench.run_target,
            Part.dense: bench.run_dense,
        }[part]()


def _arguments() -> str:
    """What the command was called with, without the place of its results."""
    arguments = iter(sys.argv[1:])
    return shlex.join(argument for argument in arguments if not (argument == "--out" and next(arguments)))
