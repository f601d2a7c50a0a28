"""The passes over a chunk's logits in plain torch: for the CPU, for fp64, and as the reference of the Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from tp_dflash.head.passes import ChunkLogits
from tp_dflash.head.shard_statistics import Measured, Merged, Overlap, Shard, merge_shards


class TorchPasses:
    """``Passes`` on any device and dtype. It holds a few copies of the chunk's logits at once.

    exchanges_twice: False leaves out the terms whose coefficients are then all 0 (kl and ce alone have none of them).
    """

    def __init__(self, exchanges_twice: bool = True) -> None:
        self.exchanges_twice = exchanges_twice

    def statistics(self, logits: ChunkLogits) -> Tensor:
        z_Cv, t_Cv = _in_working_precision(logits)
        columns = z_Cv.new_zeros((z_Cv.shape[0], Shard.WIDTH))
        columns[:, Shard.MAX] = columns[:, Shard.TEACHER_MAX] = torch.finfo(z_Cv.dtype).min
        if logits.vocab.size == 0 or z_Cv.shape[0] == 0:
            return columns
        local_argmax_C, local_teacher_C = z_Cv.argmax(dim=1, keepdim=True), t_Cv.argmax(dim=1, keepdim=True)
        columns[:, Shard.MAX] = z_Cv.gather(1, local_argmax_C).squeeze(1)
        columns[:, Shard.TEACHER_MAX] = t_Cv.gather(1, local_teacher_C).squeeze(1)
        columns[:, Shard.SUM] = (z_Cv - columns[:, Shard.MAX, None]).exp().sum(dim=1)
        columns[:, Shard.TEACHER_SUM] = (t_Cv - columns[:, Shard.TEACHER_MAX, None]).exp().sum(dim=1)
        columns[:, Shard.ARGMAX] = (local_argmax_C.squeeze(1) + logits.vocab.start).to(z_Cv.dtype)
        columns[:, Shard.TEACHER_ARGMAX] = (local_teacher_C.squeeze(1) + logits.vocab.start).to(z_Cv.dtype)
        columns[:, Shard.AT_TEACHER_ARGMAX] = z_Cv.gather(1, local_teacher_C).squeeze(1)
        owned_C = logits.vocab.owns(logits.labels_C)
        local_label_C = torch.where(owned_C, logits.labels_C - logits.vocab.start, 0)
        columns[:, Shard.LABEL_LOGIT] = torch.where(owned_C, z_Cv.gather(1, local_label_C[:, None]).squeeze(1), 0.0)
        return columns

    def merge(self, gathered_RCS: Tensor) -> Tensor:
        return merge_shards(gathered_RCS)

    def overlaps(self, logits: ChunkLogits, merged_CM: Tensor) -> Tensor:
        logq_Cv, logp_Cv = _log_probabilities(logits, merged_CM)
        q_Cv, p_Cv = logq_Cv.exp(), logp_Cv.exp()
        log_mean_Cv = torch.log(0.5 * (p_Cv + q_Cv).clamp_min(torch.finfo(q_Cv.dtype).tiny))
        columns = logq_Cv.new_empty((logq_Cv.shape[0], Overlap.WIDTH))
        columns[:, Overlap.ALPHA] = torch.minimum(p_Cv, q_Cv).sum(dim=1)
        columns[:, Overlap.PULL] = (q_Cv * _pull(q_Cv, p_Cv)).sum(dim=1)
        columns[:, Overlap.REVERSE_KL] = (q_Cv * (logq_Cv - logp_Cv)).sum(dim=1)
        columns[:, Overlap.JS_DRAFTER] = 0.5 * (q_Cv * (logq_Cv - log_mean_Cv)).sum(dim=1)
        columns[:, Overlap.JS_TEACHER] = 0.5 * (p_Cv * (logp_Cv - log_mean_Cv)).sum(dim=1)
        columns[:, Overlap.ENTROPY] = -(q_Cv * logq_Cv).sum(dim=1)
        return columns

    def gradient(self, logits: ChunkLogits, merged_CM: Tensor, coefficients_CK: Tensor | None) -> tuple[Tensor, Tensor]:
        logq_Cv, logp_Cv = _log_probabilities(logits, merged_CM)
        q_Cv, p_Cv = logq_Cv.exp(), logp_Cv.exp()
        ids_v = torch.arange(logits.vocab.start, logits.vocab.stop, device=logq_Cv.device)
        measured = logq_Cv.new_empty((logq_Cv.shape[0], Measured.WIDTH))
        measured[:, Measured.KL] = (p_Cv * (logp_Cv - logq_Cv)).sum(dim=1)
        measured[:, Measured.ALPHA] = torch.minimum(p_Cv, q_Cv).sum(dim=1)
        measured[:, Measured.ENTROPY] = -(q_Cv * logq_Cv).sum(dim=1)
        z_Cv = logits.drafter_Cv.to(logq_Cv.dtype)
        teacher_argmax_C = merged_CM[:, Merged.TEACHER_ARGMAX].long()
        measured[:, Measured.LABEL_RANK] = _preferred(z_Cv, ids_v, merged_CM[:, Merged.LABEL_LOGIT], logits.labels_C)
        measured[:, Measured.TEACHER_RANK] = _preferred(
            z_Cv, ids_v, merged_CM[:, Merged.AT_TEACHER_ARGMAX], teacher_argmax_C
        )
        if coefficients_CK is None:
            return logits.drafter_Cv, measured
        a, b, e, r, j, s, h, fbar = coefficients_CK[..., None].unbind(dim=1)
        grad_Cv = a * q_Cv - b * p_Cv - e * (ids_v == logits.labels_C[:, None])
        if not self.exchanges_twice:
            return grad_Cv, measured
        log_mean_Cv = torch.log(0.5 * (p_Cv + q_Cv).clamp_min(torch.finfo(q_Cv.dtype).tiny))
        force_Cv = r * (logq_Cv - logp_Cv) + 0.5 * j * (logq_Cv - log_mean_Cv) - s * _pull(q_Cv, p_Cv) - h * logq_Cv
        grad_Cv += q_Cv * (force_Cv - fbar)
        return grad_Cv, measured


def _in_working_precision(logits: ChunkLogits) -> tuple[Tensor, Tensor]:
    """Drafter logits and each row's teacher logits, at least fp32, the teacher's divided by the temperature."""
    dtype = torch.float64 if logits.drafter_Cv.dtype == torch.float64 else torch.float32
    teacher_Cv = logits.teacher_Sv[logits.slot_C].to(dtype)
    return logits.drafter_Cv.to(dtype), teacher_Cv * logits.inverse_temperature


def _log_probabilities(logits: ChunkLogits, merged_CM: Tensor) -> tuple[Tensor, Tensor]:
    z_Cv, t_Cv = _in_working_precision(logits)
    return z_Cv - merged_CM[:, Merged.LSE, None], t_Cv - merged_CM[:, Merged.TEACHER_LSE, None]


def _pull(q_Cv: Tensor, p_Cv: Tensor) -> Tensor:
    return (q_Cv < p_Cv).to(q_Cv.dtype) + 0.5 * (q_Cv == p_Cv)


def _preferred(z_Cv: Tensor, ids_v: Tensor, logit_C: Tensor, id_C: Tensor) -> Tensor:
    """How many of the shard's token ids come before (logit, id): a larger logit, or an equal one with a lower id."""
    before_Cv = (z_Cv > logit_C[:, None]) | ((z_Cv == logit_C[:, None]) & (ids_v < id_C[:, None]))
    return before_Cv.sum(dim=1).to(z_Cv.dtype)
