# mypy: disable-error-code=no-untyped-def
"""Triton kernels that reduce a chunk's logits to statistics, and merge the statistics of the shards.

Comes in: logits of a shard, row by row. Goes out: columns of ``Shard``, ``Merged``. One program takes whole rows, one after
another. Row offsets are 64-bit: rows x vocabulary passes 2^31 at sizes in daily use.

Each lane keeps a sum of exponentials relative to the largest logit of the row's first block, and the place of its own
maximum: one exponential and no rescaling an element. Should the row hold a logit so much larger that a sum could leave
fp32's range, the row is read again relative to its true maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Below every logit: a lane's maximum before its first element, and what a column beyond the shard reads as.
_NO_MAXIMUM = tl.constexpr(-1.0e38)
_BEYOND = tl.constexpr(-3.0e38)
_LOWEST_REFERENCE = tl.constexpr(-1.0e30)
_NO_ID = tl.constexpr(2**30)
_LOG2_E = tl.constexpr(1.4426950408889634)
# exp(60) times a million of them is far from fp32's largest number.
_FAR = tl.constexpr(60.0)


@triton.jit
def _update(x, largest, total, found, start, reference2):
    """One element a lane into (largest, sum of exp(x - reference), block where largest was found)."""
    total += tl.exp2(x * _LOG2_E - reference2)
    rises = x > largest
    return tl.where(rises, x, largest), total, tl.where(rises, start, found)


@triton.jit
def _reduce(largest, total, found, lanes, reference):
    """Lanes to (maximum, sum relative to it, lowest column that has it)."""
    top = tl.max(largest, axis=0)
    column = tl.min(tl.where(largest == top, found + lanes, _NO_ID), axis=0)
    return top, tl.sum(total, axis=0) * tl.exp(tl.minimum(reference - top, 0.0)), column


@triton.jit
def _teacher(t_row, columns, inside, inverse_temperature, TEMPERED: tl.constexpr):
    if inside is None:
        t = tl.load(t_row + columns).to(tl.float32)
    else:
        t = tl.load(t_row + columns, mask=inside, other=0.0).to(tl.float32)
    if TEMPERED:
        t *= inverse_temperature
    return t


@triton.jit
def _edge(z_row, t_row, columns, width, padded, inverse_temperature, TEMPERED: tl.constexpr):
    """Logits of a block that may reach beyond the shard."""
    z = tl.load(z_row + columns, mask=columns < padded, other=0.0).to(tl.float32)
    t = _teacher(t_row, columns, columns < padded, inverse_temperature, TEMPERED)
    return tl.where(columns < width, z, _BEYOND), tl.where(columns < width, t, _BEYOND)


@triton.jit
def statistics_kernel(
    z_ptr, t_ptr, slot_ptr, label_ptr, out_ptr,
    num_rows, width, padded, vocab_start, z_stride, t_stride, inverse_temperature,
    OUT_WIDTH: tl.constexpr, TEMPERED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write ``Shard`` columns of every row; rows are ``padded`` long in memory, so that loads stay wide for any width."""
    lanes = tl.arange(0, BLOCK)
    # Whole blocks need no mask: each select that the loop does without is an instruction for every element.
    whole = width - width % BLOCK
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        z_row = z_ptr + tl.cast(row, tl.int64) * z_stride
        t_row = t_ptr + tl.load(slot_ptr + row) * t_stride
        z, t = _edge(z_row, t_row, lanes, width, padded, inverse_temperature, TEMPERED)
        reference = tl.maximum(tl.max(z, axis=0), _LOWEST_REFERENCE)
        teacher_reference = tl.maximum(tl.max(t, axis=0), _LOWEST_REFERENCE)
        top, total, column = reference, 0.0, 0
        teacher_top, teacher_total, teacher_column = teacher_reference, 0.0, 0
        again = 1
        while again > 0:
            z_top = tl.full([BLOCK], _NO_MAXIMUM, tl.float32)
            t_top = tl.full([BLOCK], _NO_MAXIMUM, tl.float32)
            z_sum = tl.zeros([BLOCK], tl.float32)
            t_sum = tl.zeros([BLOCK], tl.float32)
            z_found = tl.zeros([BLOCK], tl.int32)
            t_found = tl.zeros([BLOCK], tl.int32)
            reference2 = reference * _LOG2_E
            teacher_reference2 = teacher_reference * _LOG2_E
            for start in tl.range(0, whole, BLOCK, num_stages=STAGES):
                columns = start + lanes
                z = tl.load(z_row + columns).to(tl.float32)
                t = _teacher(t_row, columns, None, inverse_temperature, TEMPERED)
                z_top, z_sum, z_found = _update(z, z_top, z_sum, z_found, start, reference2)
                t_top, t_sum, t_found = _update(t, t_top, t_sum, t_found, start, teacher_reference2)
            if whole < width:
                z, t = _edge(z_row, t_row, whole + lanes, width, padded, inverse_temperature, TEMPERED)
                z_top, z_sum, z_found = _update(z, z_top, z_sum, z_found, whole, reference2)
                t_top, t_sum, t_found = _update(t, t_top, t_sum, t_found, whole, teacher_reference2)
            top, total, column = _reduce(z_top, z_sum, z_found, lanes, reference)
            teacher_top, teacher_total, teacher_column = _reduce(t_top, t_sum, t_found, lanes, teacher_reference)
            far = (top - reference > _FAR) | (teacher_top - teacher_reference > _FAR)
            again = far.to(tl.int32)
            reference = tl.maximum(top, reference)
            teacher_reference = tl.maximum(teacher_top, teacher_reference)
        label = tl.load(label_ptr + row) - vocab_start
        label_logit = tl.load(z_row + label, mask=(label >= 0) & (label < width), other=0.0).to(tl.float32)
        at_teacher = tl.load(z_row + teacher_column, mask=teacher_column < width, other=0.0).to(tl.float32)
        out = out_ptr + row * OUT_WIDTH
        tl.store(out + 0, top)
        tl.store(out + 1, total)
        tl.store(out + 2, teacher_top)
        tl.store(out + 3, teacher_total)
        tl.store(out + 4, label_logit)
        tl.store(out + 5, (column + vocab_start).to(tl.float32))
        tl.store(out + 6, (teacher_column + vocab_start).to(tl.float32))
        tl.store(out + 7, at_teacher)


@triton.jit
def _merge_side(gathered, rows, inside, num_rows, RANKS: tl.constexpr, IN_WIDTH: tl.constexpr,
                MAX: tl.constexpr, SUM: tl.constexpr, ID: tl.constexpr, EXTRA: tl.constexpr):  # fmt: skip
    """(LSE, winning id, the winner's EXTRA column) of one side, shards taken in rank order."""
    top = tl.full(rows.shape, _BEYOND, tl.float32)
    for rank in tl.static_range(RANKS):
        top = tl.maximum(top, tl.load(gathered + (rank * num_rows + rows) * IN_WIDTH + MAX, mask=inside, other=0.0))
    total = tl.zeros(rows.shape, tl.float32)
    winner = tl.full(rows.shape, -1.0, tl.float32)
    extra = tl.zeros(rows.shape, tl.float32)
    for rank in tl.static_range(RANKS):
        shard = gathered + (rank * num_rows + rows) * IN_WIDTH
        largest = tl.load(shard + MAX, mask=inside, other=0.0)
        part = tl.load(shard + SUM, mask=inside, other=1.0)
        total += part * tl.exp(largest - top)
        first = (largest == top) & (part > 0) & (winner < 0)
        winner = tl.where(first, tl.load(shard + ID, mask=inside, other=0.0), winner)
        extra = tl.where(first, tl.load(shard + EXTRA, mask=inside, other=0.0), extra)
    return top + tl.log(total), winner, extra


@triton.jit
def merge_kernel(
    gathered_ptr, out_ptr, num_rows,
    RANKS: tl.constexpr, IN_WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Merge the shards' columns of BLOCK rows a program; every rank runs it on the same numbers in the same order."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < num_rows
    label_logit = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        label_logit += tl.load(gathered_ptr + (rank * num_rows + rows) * IN_WIDTH + 4, mask=inside, other=0.0)
    lse, argmax, _ = _merge_side(gathered_ptr, rows, inside, num_rows, RANKS, IN_WIDTH, 0, 1, 5, 4)
    teacher_lse, teacher_argmax, at_argmax = _merge_side(
        gathered_ptr, rows, inside, num_rows, RANKS, IN_WIDTH, 2, 3, 6, 7
    )
    out = out_ptr + rows * OUT_WIDTH
    tl.store(out + 0, lse, mask=inside)
    tl.store(out + 1, teacher_lse, mask=inside)
    tl.store(out + 2, label_logit, mask=inside)
    tl.store(out + 3, at_argmax, mask=inside)
    tl.store(out + 4, argmax, mask=inside)
    tl.store(out + 5, teacher_argmax, mask=inside)
