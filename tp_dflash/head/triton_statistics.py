"""Triton kernels that reduce a chunk's logits to statistics, and merge the statistics of the shards.

Comes in: logits of a shard, row by row. Goes out: columns of ``Shard``, ``Merged``. One program takes whole rows, one after
another, so a launch of few programs leaves the other multiprocessors to a matrix product beside it. Row offsets are 64-bit:
rows x vocabulary passes 2^31 at sizes in daily use. No value leaves a lane before the row ends: each lane keeps a running
maximum, a sum relative to it and the place of the maximum, with one exponential an element.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

# Below every logit: a lane's maximum before its first element, and what a column beyond the shard reads as.
_NO_MAXIMUM = tl.constexpr(-1.0e38)
_BEYOND = tl.constexpr(-3.0e38)
_NO_ID = tl.constexpr(2**30)


@triton.jit
def _update(x, largest, total, found, start):
    """One element a lane into (largest, sum of exp(x - largest), block where largest was found)."""
    distance = x - largest
    shrunk = tl.exp(-tl.abs(distance))
    rises = distance > 0
    total = tl.where(rises, total * shrunk + 1.0, total + shrunk)
    return tl.where(rises, x, largest), total, tl.where(rises, start, found), rises


@triton.jit
def _update_both(z, t, z_top, z_sum, z_found, t_top, t_sum, t_found, z_at_t, start):
    """Both sides, and the drafter's logit where the teacher's maximum is."""
    z_top, z_sum, z_found, _ = _update(z, z_top, z_sum, z_found, start)
    t_top, t_sum, t_found, rises = _update(t, t_top, t_sum, t_found, start)
    return z_top, z_sum, z_found, t_top, t_sum, t_found, tl.where(rises, z, z_at_t)


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
def _reduce(largest, total, found, lanes):
    """Lanes to (maximum, sum relative to it, lowest column that has it)."""
    top = tl.max(largest, axis=0)
    column = tl.min(tl.where(largest == top, found + lanes, _NO_ID), axis=0)
    return top, tl.sum(total * tl.exp(largest - top), axis=0), column


@triton.jit
def statistics_kernel(
    z_ptr, t_ptr, slot_ptr, label_ptr, out_ptr,
    num_rows, width, padded, vocab_start, z_stride, t_stride, inverse_temperature,
    OUT_WIDTH: tl.constexpr, TEMPERED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write ``Shard`` columns of every row; rows are ``padded`` long in memory, so that loads stay wide for any width."""
    lanes = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        z_row = z_ptr + tl.cast(row, tl.int64) * z_stride
        t_row = t_ptr + tl.load(slot_ptr + row) * t_stride
        z_top = tl.full([BLOCK], _NO_MAXIMUM, tl.float32)
        t_top = tl.full([BLOCK], _NO_MAXIMUM, tl.float32)
        z_sum = tl.zeros([BLOCK], tl.float32)
        t_sum = tl.zeros([BLOCK], tl.float32)
        z_at_t = tl.zeros([BLOCK], tl.float32)
        z_found = tl.zeros([BLOCK], tl.int32)
        t_found = tl.zeros([BLOCK], tl.int32)
        # Whole blocks need no mask: each select that the loop does without is an instruction for every element.
        whole = width - width % BLOCK
        for start in tl.range(0, whole, BLOCK, num_stages=STAGES):
            columns = start + lanes
            z = tl.load(z_row + columns).to(tl.float32)
            t = _teacher(t_row, columns, None, inverse_temperature, TEMPERED)
            z_top, z_sum, z_found, t_top, t_sum, t_found, z_at_t = _update_both(
                z, t, z_top, z_sum, z_found, t_top, t_sum, t_found, z_at_t, start
            )
        if whole < width:
            columns = whole + lanes
            z = tl.load(z_row + columns, mask=columns < padded, other=0.0).to(tl.float32)
            t = _teacher(t_row, columns, columns < padded, inverse_temperature, TEMPERED)
            z = tl.where(columns < width, z, _BEYOND)
            t = tl.where(columns < width, t, _BEYOND)
            z_top, z_sum, z_found, t_top, t_sum, t_found, z_at_t = _update_both(
                z, t, z_top, z_sum, z_found, t_top, t_sum, t_found, z_at_t, whole
            )
        top, total, column = _reduce(z_top, z_sum, z_found, lanes)
        teacher_top, teacher_total, teacher_column = _reduce(t_top, t_sum, t_found, lanes)
        wins = (t_top == teacher_top) & (t_found + lanes == teacher_column)
        label = tl.load(label_ptr + row) - vocab_start
        label_logit = tl.load(z_row + label, mask=(label >= 0) & (label < width), other=0.0).to(tl.float32)
        out = out_ptr + row * OUT_WIDTH
        tl.store(out + 0, top)
        tl.store(out + 1, total)
        tl.store(out + 2, teacher_top)
        tl.store(out + 3, teacher_total)
        tl.store(out + 4, label_logit)
        tl.store(out + 5, (column + vocab_start).to(tl.float32))
        tl.store(out + 6, (teacher_column + vocab_start).to(tl.float32))
        tl.store(out + 7, tl.sum(tl.where(wins, z_at_t, 0.0), axis=0))


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
