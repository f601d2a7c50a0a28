"""Triton kernels that know both LSEs: the sums over the overlap of p and q, and the gradient of the logits in place.

Comes in: logits, merged statistics and coefficients of each row. Goes out: ``Overlap`` or ``Measured`` columns, and the
gradient over the logits it was made from. Everything is formed in fp32 and rounded once, when the gradient is stored.

The gradient kernel reads one block ahead: reads are always to the right of what is stored.

In place: the gradient of a row lies at the start of the row's logits, in elements of half the size. Block k is stored to
bytes 2kB..2(k+1)B and read from bytes 4kB..4(k+1)B, so a store only hits what this row has read before, as long as all warps
have read block k when the first one stores it: hence the barrier in the loop.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

# A logit beyond the shard: finite, so that a probability of 0 times its logarithm is 0.
_BEYOND = tl.constexpr(-1.0e30)
_SMALLEST = tl.constexpr(1.2e-38)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _load(z_row, t_row, columns, padded, inverse_temperature, TEMPERED: tl.constexpr):
    """Logits of some columns; the padding beyond the shard is read too, and told apart later."""
    inside = columns < padded
    z = tl.load(z_row + columns, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(t_row + columns, mask=inside, other=0.0).to(tl.float32)
    if TEMPERED:
        t *= inverse_temperature
    return z, t


@triton.jit
def _just_below(x):
    """The next smaller fp32 number, so that z > _just_below(x) says z >= x."""
    bits = x.to(tl.int32, bitcast=True)
    lower = tl.where(x > 0, bits - 1, tl.where(x < 0, bits + 1, -(2**31) + 1))
    return lower.to(tl.float32, bitcast=True)


@triton.jit
def _before(z, columns, logit, below, column):
    """1 where a column comes before (logit, column): a larger logit, or an equal one further left."""
    return (z > tl.where(columns < column, below, logit)).to(tl.int32)


@triton.jit
def _pull(q, p):
    """The derivative of min(p, q) by log q, over q."""
    return tl.where(q < p, 1.0, tl.where(q == p, 0.5, 0.0))


@triton.jit
def overlap_kernel(
    z_ptr, t_ptr, slot_ptr, merged_ptr, out_ptr,
    num_rows, width, padded, z_stride, t_stride, inverse_temperature,
    MERGED_WIDTH: tl.constexpr, OUT_WIDTH: tl.constexpr, TEMPERED: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
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
            z, t = _load(z_row, t_row, columns, padded, inverse_temperature, TEMPERED)
            logq = tl.where(columns < width, z, _BEYOND) - lse
            logp = tl.where(columns < width, t, _BEYOND) - teacher_lse
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
def _measure(z, log2q, log2p, q, p, columns, label_logit, below_label, label, at_argmax, below_argmax, teacher_argmax,
             kl, alpha, entropy, before_label, before_teacher):  # fmt: skip
    """Add one block to the running sums of ``Measured``; KL and entropy in bits until the row ends."""
    kl += p * (log2p - log2q)
    alpha += tl.minimum(p, q)
    entropy -= q * log2q
    before_label += _before(z, columns, label_logit, below_label, label)
    before_teacher += _before(z, columns, at_argmax, below_argmax, teacher_argmax)
    return kl, alpha, entropy, before_label, before_teacher


@triton.jit
def _gradient(log2q, log2p, q, p, a, b, r, j, s, h, mean_force,
              WITH_FORCE: tl.constexpr, WITH_JS: tl.constexpr):  # fmt: skip
    """g of ``row_coefficients`` but for the label's own term."""
    grad = a * q - b * p
    if WITH_FORCE:
        logq = log2q * _LN_2
        force = r * (log2q - log2p) * _LN_2 - s * _pull(q, p) - h * logq
        if WITH_JS:
            force += 0.5 * j * (logq - tl.log(tl.maximum(0.5 * (p + q), _SMALLEST)))
        grad += q * (force - mean_force)
    return grad


@triton.jit
def gradient_kernel(
    z_ptr, t_ptr, grad_ptr, slot_ptr, label_ptr, merged_ptr, coefficient_ptr, measured_ptr,
    num_rows, width, padded, vocab_start, z_stride, t_stride, grad_stride, inverse_temperature,
    MERGED_WIDTH: tl.constexpr, COEFFICIENT_WIDTH: tl.constexpr, MEASURED_WIDTH: tl.constexpr,
    WITH_GRADIENT: tl.constexpr, WITH_FORCE: tl.constexpr, WITH_JS: tl.constexpr, TEMPERED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write ``Measured`` columns and, asked for, the gradient of the drafter's logits over them."""
    lanes = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        z_row = z_ptr + tl.cast(row, tl.int64) * z_stride
        t_row = t_ptr + tl.load(slot_ptr + row) * t_stride
        grad_row = grad_ptr + tl.cast(row, tl.int64) * grad_stride
        merged = merged_ptr + row * MERGED_WIDTH
        lse2 = tl.load(merged + 0) * _LOG2_E
        teacher_lse2 = tl.load(merged + 1) * _LOG2_E
        label_logit = tl.load(merged + 2)
        at_argmax = tl.load(merged + 3)
        below_label = _just_below(label_logit)
        below_argmax = _just_below(at_argmax)
        teacher_argmax = tl.load(merged + 5).to(tl.int32) - vocab_start
        label = (tl.load(label_ptr + row) - vocab_start).to(tl.int32)
        a, b, e, r, j, s, h, mean_force = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
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
        # The next block is under way while this one is worked on; whole blocks need no select at the shard's edge.
        z_next, t_next = _load(z_row, t_row, lanes, padded, inverse_temperature, TEMPERED)
        whole = width - width % BLOCK
        for start in range(0, whole, BLOCK):
            columns = start + lanes
            z, t = z_next, t_next
            z_next, t_next = _load(z_row, t_row, columns + BLOCK, padded, inverse_temperature, TEMPERED)
            log2q = z * _LOG2_E - lse2
            log2p = t * _LOG2_E - teacher_lse2
            q = tl.exp2(log2q)
            p = tl.exp2(log2p)
            kl, alpha, entropy, before_label, before_teacher = _measure(
                z, log2q, log2p, q, p, columns, label_logit, below_label, label, at_argmax, below_argmax,
                teacher_argmax, kl, alpha, entropy, before_label, before_teacher,
            )  # fmt: skip
            if WITH_GRADIENT:
                grad = _gradient(log2q, log2p, q, p, a, b, r, j, s, h, mean_force, WITH_FORCE, WITH_JS)
                tl.debug_barrier()
                tl.store(grad_row + columns, grad.to(grad_ptr.dtype.element_ty))
        if whole < width:
            columns = whole + lanes
            z = tl.where(columns < width, z_next, _BEYOND)
            log2q = z * _LOG2_E - lse2
            log2p = tl.where(columns < width, t_next, _BEYOND) * _LOG2_E - teacher_lse2
            q = tl.exp2(log2q)
            p = tl.exp2(log2p)
            kl, alpha, entropy, before_label, before_teacher = _measure(
                z, log2q, log2p, q, p, columns, label_logit, below_label, label, at_argmax, below_argmax,
                teacher_argmax, kl, alpha, entropy, before_label, before_teacher,
            )  # fmt: skip
            if WITH_GRADIENT:
                grad = _gradient(log2q, log2p, q, p, a, b, r, j, s, h, mean_force, WITH_FORCE, WITH_JS)
                tl.debug_barrier()
                tl.store(grad_row + columns, grad.to(grad_ptr.dtype.element_ty), mask=columns < padded)
        if WITH_GRADIENT:  # noqa: SIM102 - the first is decided when the kernel is compiled
            if (label >= 0) & (label < width):
                # The label's element once more, q_y - 1 formed before any rounding, over what the loop has stored.
                t = tl.load(t_row + label).to(tl.float32)
                if TEMPERED:
                    t *= inverse_temperature
                log2q = label_logit * _LOG2_E - lse2
                log2p = t * _LOG2_E - teacher_lse2
                grad = _gradient(
                    log2q, log2p, tl.exp2(log2q), tl.exp2(log2p), a, b, r, j, s, h, mean_force, WITH_FORCE, WITH_JS
                )
                tl.debug_barrier()
                tl.store(grad_row + label, (grad - e).to(grad_ptr.dtype.element_ty))
        measured = measured_ptr + row * MEASURED_WIDTH
        tl.store(measured + 0, tl.sum(kl, axis=0) * _LN_2)
        tl.store(measured + 1, tl.sum(alpha, axis=0))
        tl.store(measured + 2, tl.sum(entropy, axis=0) * _LN_2)
        tl.store(measured + 3, tl.sum(before_label, axis=0).to(tl.float32))
        tl.store(measured + 4, tl.sum(before_teacher, axis=0).to(tl.float32))
