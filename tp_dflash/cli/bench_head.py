"""``tp-dflash bench head``: the sharded loss beside its bare matrix products and what one would use instead."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def bench_head(
    rows: Annotated[int, typer.Option(min=1, help="Block rows of all ranks together.")] = 24_576,
    width: Annotated[int, typer.Option(min=1, help="Hidden width D.")] = 5_120,
    vocabulary: Annotated[int, typer.Option(min=1, help="Vocabulary V, sharded over the ranks.")] = 248_320,
    block_size: Annotated[int, typer.Option(min=1, help="Rows of a block.")] = 24,
    chunk_rows: Annotated[int, typer.Option(min=1, help="Rows whose logits exist at once.")] = 1_536,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each; the median counts.")] = 7,
    more_rows: Annotated[
        str, typer.Option(help="Numbers of rows at which only the memory is measured, with commas; empty: none.")
    ] = "8192,98304",
    rivals: Annotated[
        bool, typer.Option(help="Also time plain torch, compiled chunks, Liger, cut-cross-entropy.")
    ] = True,
    results: Annotated[Path, typer.Option(help="Where the figures are written.")] = Path("docs/results/head.json"),
    picture: Annotated[
        Path | None, typer.Option(help="Where they are drawn; default: beside the figures, .png.")
    ] = None,
) -> None:
    """Time the head loss on this machine: alone, or with torchrun on one rank a GPU."""
    import torch
    import torch.distributed as dist
    from rich.console import Console

    from tp_dflash.bench.head_command import HeadBench
    from tp_dflash.bench.head_problem import HeadSizes
    from tp_dflash.bench.head_report import draw_head, head_table, head_text
    from tp_dflash.bench.head_results import machine
    from tp_dflash.cli.world import World, joined, leaving_at_once
    from tp_dflash.parallel import pick_device

    world = World.from_environment()
    with leaving_at_once(f"rank {world.rank}"), joined(world, timeout_seconds=600.0):
        device = pick_device(world.local_rank)
        shared = world.world_size > 1
        backend = "nccl" if device.type == "cuda" else "gloo"
        bench = HeadBench(
            sizes=HeadSizes(rows, width, vocabulary, block_size, chunk_rows),
            group=dist.new_group(backend=backend) if shared else None,
            host_group=dist.group.WORLD if shared else None,
            rank=world.rank,
            num_ranks=world.world_size,
            device=device,
            repeats=repeats,
            more_rows=tuple(int(number) for number in more_rows.split(",") if number),
        )
        found = bench.run(with_rivals=rivals)
        if world.rank == 0:
            Console(width=None if sys.stdout.isatty() else 120).print(head_table(found))
            print(head_text(found))
            launcher = f"torchrun --nproc-per-node {world.local_world_size} -m tp_dflash" if shared else "tp-dflash"
            found.write(results, f"{launcher} {shlex.join(sys.argv[1:])}", torch.device(device))
            drawn = results.with_suffix(".png") if picture is None else picture
            draw_head(found, f"Head loss on {machine(device, world.world_size)}", drawn)
            print(f"written to {results} and {drawn}")


if __name__ == "__main__":
    typer.run(bench_head)
