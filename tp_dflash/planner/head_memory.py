"""What the sharded head loss holds on one rank: its shard, a chunk of logits, rows on their way.

In: sizes. Out: memory lines. Chunk and teacher-row sizes come from the head's own ``plan_rows``.
"""

from __future__ import annotations

from tp_dflash.head.row_plan import RowPlan, plan_rows
from tp_dflash.head.vocab_range import VocabRange
from tp_dflash.planner.memory_line import MemoryLine
from tp_dflash.planner.run_sizes import RunSizes

_FP32 = 4
_LOGITS_BYTES = {"float32": 4, "bfloat16": 2}


def head_row_plan(sizes: RunSizes) -> RowPlan:
    """Chunks of a full pack: every trained row active, the most teacher rows."""
    return plan_rows(
        tuple(range(sizes.row_ranks)),
        sizes.rows,
        chunk_rows=sizes.config.training.head_chunk_rows,
        block_size=sizes.shape.block_size,
        active_rows=sizes.trained_rows,
        num_teacher_rows=sizes.most_teacher_rows,
        whole_blocks=sizes.config.objective.weights == "dpace",
    )


def shard_rows(sizes: RunSizes) -> int:
    """v: vocabulary rows of the largest shard."""
    return VocabRange.split(sizes.facts.vocab_size, sizes.head_ranks)[0].size


def shard_line(sizes: RunSizes) -> MemoryLine:
    """Frozen heads: drafter and teacher share one tensor."""
    rows, shape = shard_rows(sizes), sizes.shape
    return MemoryLine(
        "lm_head shard",
        rows * shape.hidden_size * sizes.compute_bytes,
        f"{sizes.facts.vocab_size:,} rows / {sizes.head_ranks} = {rows:,} x {shape.hidden_size:,} x {sizes.compute_bytes} B",
    )


def chunk_lines(sizes: RunSizes) -> list[MemoryLine]:
    """Logits of the drafter and of the teacher, and the rows of all ranks that are gathered and sent back."""
    plan, v, ranks = head_row_plan(sizes), shard_rows(sizes), sizes.row_ranks
    chunk, teacher = plan.largest_chunk * ranks, plan.num_regions * plan.region_rows * ranks
    width, compute = sizes.shape.hidden_size, sizes.compute_bytes
    logits = _LOGITS_BYTES[sizes.config.training.logits_precision]
    gathered = 2 * (chunk + plan.region_rows * ranks) * width * compute
    partial = chunk * width * _FP32
    return [
        MemoryLine(
            "logits chunk, drafter",
            chunk * v * logits,
            f"{chunk:,} rows x {v:,} x {logits} B",
            ("head",),
        ),
        MemoryLine(
            "logits chunk, teacher",
            teacher * v * logits,
            f"{plan.num_regions} pieces x {plan.region_rows * ranks:,} unique rows x {v:,} x {logits} B",
            ("head",),
        ),
        MemoryLine(
            "head gather and return buffers",
            gathered + partial,
            f"2 x ({chunk:,} + {plan.region_rows * ranks:,}) rows x {width:,} x {compute} B + "
            f"{chunk:,} x {width:,} x 4 B",
            ("head",),
        ),
    ]


def dense_loss_bytes(sizes: RunSizes) -> tuple[int, str]:
    """What whole logits would take instead: drafter, teacher and gradient, fp32, of this rank's own rows."""
    num_bytes = 3 * sizes.trained_rows * sizes.facts.vocab_size * _FP32
    return num_bytes, f"3 x {sizes.trained_rows:,} rows x {sizes.facts.vocab_size:,} x 4 B"
