"""What the frozen target holds on one rank: weights, one forward's working set, the features of packs on their way."""

from __future__ import annotations

from tp_dflash.planner.memory_line import MemoryLine
from tp_dflash.planner.run_sizes import RunSizes

# Packs whose features exist on a target rank: one that is being computed, one that is being sent.
PACKS_ON_TARGET = 2


def weight_line(sizes: RunSizes) -> MemoryLine:
    count, held, width = sizes.target_parameters, sizes.target_share, sizes.target_bytes
    words = f"{count:,} parameters without lm_head"
    if sizes.target_ranks > 1:
        words += f", projections / {sizes.target_ranks} ranks: {held:,}"
    return MemoryLine("target weights", held * width, f"{words} x {width} B")


def forward_line(sizes: RunSizes) -> MemoryLine:
    """The largest moment of a decoder layer in inference: activated gate, up and their product beside the residual."""
    facts, width = sizes.facts, sizes.target_bytes
    tokens = forward_tokens(sizes)
    columns = facts.intermediate_size // sizes.target_ranks
    per_token = 3 * columns + 4 * facts.hidden_size
    return MemoryLine(
        "target forward",
        tokens * per_token * width,
        f"{tokens:,} tokens x (3 x {columns:,} + 4 x {facts.hidden_size:,}) x {width} B",
        ("features",),
    )


def forward_tokens(sizes: RunSizes) -> int:
    """Most tokens of one forward: the limit, or one longest document, which runs alone."""
    return max(sizes.config.target.tokens_per_forward, sizes.config.data.max_length)


def pack_bytes(sizes: RunSizes) -> int:
    """Bytes of one pack's features, teacher rows and anchor embeddings: what travels, and what is held of it."""
    rows = sizes.tokens * len(sizes.shape.target_layer_ids) + teacher_slots(sizes) + sizes.anchors
    return rows * sizes.shape.hidden_size * sizes.target_bytes


def teacher_slots(sizes: RunSizes) -> int:
    """Teacher rows that a buffer has room for: one a block row, or one a token."""
    return min(sizes.rows, sizes.tokens)


def buffer_line(sizes: RunSizes, num_packs: int, name: str) -> MemoryLine:
    """Buffers of ``num_packs`` packs: context features, teacher rows, anchor embeddings; made once, at full size."""
    shape = sizes.shape
    return MemoryLine(
        name,
        num_packs * pack_bytes(sizes),
        f"{num_packs} x ({sizes.tokens:,} x {len(shape.target_layer_ids)} taps + {teacher_slots(sizes):,} teacher + "
        f"{sizes.anchors:,} anchor rows) x {shape.hidden_size:,} x {sizes.target_bytes} B",
    )
