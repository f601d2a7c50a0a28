"""Triton kernels that know both LSEs: the sums over the overlap of p and q, and the gradient of the logits in place.

Comes in: logits, merged statistics and coefficients of each row. Goes out: ``Overlap`` or ``Measured`` columns, and the
gradient over the logits it was made from. Everything is formed in fp32 and rounded once, when the gradient is stored.

In place: the gradient of a row lies at the start of the row's logits, in elements of half the size. Block k is stored to
bytes 2kB..2(k+1)B and read from bytes 4kB..4(k+1)B, so a store only hits what this row has read before, as long as all warps
have read block k when the first one stores it: hence the barrier in the loop.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

# Log-probability of a column beyond the shard: finite, so that 0 times it is 0.
_BEYOND = tl.constexpr(-1.0e30)
_SMALLEST = tl.constexpr(1.2e-38)


@triton.jit
def _load(z_row, t_row, columns, padded):
    """Logits of some columns as they lie in memory; the padding beyond the shard is read, and told apart later."""
    inside = columns < padded
    return tl.load(z_row + columns, mask=inside, other=0.0), tl.load(t_row + columns, mask=inside, other=0.0)


@triton.jit
def _log_probabilities(z, t, columns, width, lse, teacher_lse, inverse_temperature):
    """(z, log q, log p) of some columns."""
    z = tl.where(columns < width, z.to(tl.float32), _BEYOND)
    t = tl.where(columns < width, t.to(tl.float32) * inverse_temperature, _BEYOND)
    return z, z - lse, t - teacher_lse


@triton.jit
def _pull(q, p):
    """The derivative of min(p, q) by log q, over q."""
    return tl.where(q < p, 1.0, tl.where(q == p, 0.5, 0.0))


@triton.jit
def overlap_kernel(
    z_ptr, t_ptr, slot_ptr, merged_ptr, out_ptr,
    num_rows, width, z_stride, t_stride, inverse_temperature,
    MERGED_WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write ``Overlap`` columns of every row: this shard's part of the sums."""
    lanes = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        z_row = z_ptr + tl.cast(row, tl.int64) * z_stride
        t_row = t_ptr + tl.load(slot_ptr + row) * t_stride
        lse = tl.load(merged_ptr + row * MERGED_WIDTH + 0)
        teacher_lse = tl.load(merged_ptr + row * MERGED_WIDTH + 1)
        alpha = tl.zeros([BLOCK], tl.float32)
        pulled = tl.zeros([BLOCK], tl.float32)
        reverse_kl = tl.zeros([BLOCK], tl.float32)
        js_drafter = tl.zeros([BLOCK], tl.float32)
        js_teacher = tl.zeros([BLOCK], tl.float32)
        entropy = tl.zeros([BLOCK], tl.float32)
        for start in tl.range(0, width, BLOCK, num_stages=STAGES):
            columns = start + lanes
            z, t = _load(z_row, t_row, columns, z_stride)
            _, logq, logp = _log_probabilities(z, t, columns, width, lse, teacher_lse, inverse_temperature)
            q = tl.exp(logq)
            p = tl.exp(logp)
            log_mean = tl.log(tl.maximum(0.5 * (p + q), _SMALLEST))
            alpha += tl.minimum(p, q)
            pulled += q * _pull(q, p)
            reverse_kl += q * (logq - logp)
            js_drafter += q * (logq - log_mean)
            js_teacher += p * (logp - log_mean)
            entropy -= q * logq
        out = out_ptr + row * OUT_WIDTH
        tl.store(out + 0, tl.sum(alpha, axis=0))
        tl.store(out + 1, tl.sum(pulled, axis=0))
        tl.store(out + 2, tl.sum(reverse_kl, axis=0))
        tl.store(out + 3, 0.5 * tl.sum(js_drafter, axis=0))
        tl.store(out + 4, 0.5 * tl.sum(js_teacher, axis=0))
        tl.store(out + 5, tl.sum(entropy, axis=0))


@triton.jit
def gradient_kernel(
    z_ptr, t_ptr, grad_ptr, slot_ptr, label_ptr, merged_ptr, coefficient_ptr, measured_ptr,
    num_rows, width, vocab_start, z_stride, t_stride, grad_stride, inverse_temperature,
    MERGED_WIDTH: tl.constexpr, COEFFICIENT_WIDTH: tl.constexpr, MEASURED_WIDTH: tl.constexpr,
    WITH_GRADIENT: tl.constexpr, WITH_FORCE: tl.constexpr, WITH_JS: tl.constexpr,
    PREFETCH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write ``Measured`` columns and, asked for, the gradient g of ``row_coefficients`` over the drafter's logits."""
    lanes = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        z_row = z_ptr + tl.cast(row, tl.int64) * z_stride
        t_row = t_ptr + tl.load(slot_ptr + row) * t_stride
        grad_row = grad_ptr + tl.cast(row, tl.int64) * grad_stride
        merged = merged_ptr + row * MERGED_WIDTH
        lse = tl.load(merged + 0)
        teacher_lse = tl.load(merged + 1)
        label_logit = tl.load(merged + 2)
        at_argmax = tl.load(merged + 3)
        teacher_argmax = tl.load(merged + 5).to(tl.int32) - vocab_start
        label = (tl.load(label_ptr + row) - vocab_start).to(tl.int32)
        if WITH_GRADIENT:
            coefficients = coefficient_ptr + row * COEFFICIENT_WIDTH
            a = tl.load(coefficients + 0)
            b = tl.load(coefficients + 1)
            e = tl.load(coefficients + 2)
            if WITH_FORCE:
                r = tl.load(coefficients + 3)
                j = tl.load(coefficients + 4)
                s = tl.load(coefficients + 5)
                h = tl.load(coefficients + 6)
                mean_force = tl.load(coefficients + 7)
        kl = tl.zeros([BLOCK], tl.float32)
        alpha = tl.zeros([BLOCK], tl.float32)
        entropy = tl.zeros([BLOCK], tl.float32)
        before_label = tl.zeros([BLOCK], tl.int32)
        before_teacher = tl.zeros([BLOCK], tl.int32)
        if PREFETCH:
            z_next, t_next = _load(z_row, t_row, lanes, z_stride)
        for start in tl.range(0, width, BLOCK, num_stages=STAGES):
            columns = start + lanes
            if PREFETCH:
                z, t = z_next, t_next
                z_next, t_next = _load(z_row, t_row, columns + BLOCK, z_stride)
            else:
                z, t = _load(z_row, t_row, columns, z_stride)
            z, logq, logp = _log_probabilities(z, t, columns, width, lse, teacher_lse, inverse_temperature)
            q = tl.exp(logq)
            p = tl.exp(logp)
            kl += p * (logp - logq)
            alpha += tl.minimum(p, q)
            entropy -= q * logq
            before_label += ((z > label_logit) | ((z == label_logit) & (columns < label))).to(tl.int32)
            before_teacher += ((z > at_argmax) | ((z == at_argmax) & (columns < teacher_argmax))).to(tl.int32)
            if WITH_GRADIENT:
                grad = a * q - b * p
                grad = tl.where(columns == label, grad - e, grad)
                if WITH_FORCE:
                    force = r * (logq - logp) - s * _pull(q, p) - h * logq
                    if WITH_JS:
                        force += 0.5 * j * (logq - tl.log(tl.maximum(0.5 * (p + q), _SMALLEST)))
                    grad += q * (force - mean_force)
                tl.debug_barrier()
                tl.store(grad_row + columns, grad.to(grad_ptr.dtype.element_ty), mask=columns < z_stride)
        measured = measured_ptr + row * MEASURED_WIDTH
        tl.store(measured + 0, tl.sum(kl, axis=0))
        tl.store(measured + 1, tl.sum(alpha, axis=0))
        tl.store(measured + 2, tl.sum(entropy, axis=0))
        tl.store(measured + 3, tl.sum(before_label, axis=0).to(tl.float32))
        tl.store(measured + 4, tl.sum(before_teacher, axis=0).to(tl.float32))
