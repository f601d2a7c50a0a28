"""From sums over the vocabulary to what a row is told: its loss, and its statistics in the caller's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.chunk_loop import LoopOutput
from tp_dflash.head.row_coefficients import SMALLEST_ALPHA, lk_mix
from tp_dflash.head.row_order import RowOrder
from tp_dflash.head.row_statistics import RowStatistics
from tp_dflash.head.shard_statistics import Measured, Merged, Overlap


@dataclass(frozen=True, eq=False)
class _Scatter:
    """Puts values of computed rows back at their place among the caller's rows; all other rows get ``empty``."""

    row_n: Tensor
    active_N: Tensor

    def __call__(self, values_n: Tensor, empty: float) -> Tensor:
        spread_N = values_n.new_full(self.active_N.shape, empty)
        spread_N[self.row_n] = values_n
        return torch.where(self.active_N, spread_N, empty)


def row_losses(output: LoopOutput, labels_n: Tensor, objective: Objective) -> Tensor:
    """The unweighted blend of each computed row, (n,) (docs/numerics.md)."""
    merged, overlap = output.merged_nM, output.overlap_nO
    kl_n = output.measured_nP[:, Measured.KL]
    loss_n = objective.ce * (merged[:, Merged.LSE] - merged[:, Merged.LABEL_LOGIT]) + objective.kl * kl_n
    if not objective.exchanges_twice:
        return loss_n
    alpha_n = overlap[:, Overlap.ALPHA]
    mix_n = lk_mix(alpha_n)
    confident_n = merged[:, Merged.ARGMAX] == labels_n
    return (
        loss_n
        + objective.reverse_kl * overlap[:, Overlap.REVERSE_KL]
        + objective.js * (overlap[:, Overlap.JS_DRAFTER] + overlap[:, Overlap.JS_TEACHER])
        + objective.tv * (1.0 - alpha_n)
        + objective.lk * (mix_n * kl_n + (1.0 - mix_n) * (1.0 - alpha_n))
        + objective.nla * -torch.log(alpha_n.clamp_min(SMALLEST_ALPHA))
        + objective.cap * torch.where(confident_n, overlap[:, Overlap.ENTROPY], 0.0)
    )


def row_statistics(
    output: LoopOutput,
    order: RowOrder | None,
    active_N: Tensor,
    labels_N: Tensor,
    objective: Objective,
    make_weights: Callable[[Tensor], Tensor] | None,
) -> RowStatistics:
    """Statistics of this rank's rows. ``make_weights``: from q(y) of all rows to weights; None: those of the loop."""
    if order is None:
        return _no_rows(active_N, output.merged_nM.dtype)
    merged, measured = output.merged_nM, output.measured_nP
    scatter = _Scatter(order.row_n, active_N)
    label_logprob_N = scatter(merged[:, Merged.LABEL_LOGIT] - merged[:, Merged.LSE], 0.0)
    if make_weights is None:
        weight_N = scatter(output.scale_n, 0.0)
    else:
        weight_N = make_weights(torch.where(active_N, label_logprob_N.exp(), 0.0))
    return RowStatistics(
        valid_N=active_N,
        weight_N=weight_N,
        loss_N=scatter(row_losses(output, labels_N[order.row_n], objective), 0.0),
        label_logprob_N=label_logprob_N,
        kl_N=scatter(measured[:, Measured.KL], 0.0),
        alpha_N=scatter(measured[:, Measured.ALPHA], 0.0),
        entropy_N=scatter(measured[:, Measured.ENTROPY], 0.0),
        label_rank_N=scatter(measured[:, Measured.LABEL_RANK], -1).long(),
        teacher_rank_N=scatter(measured[:, Measured.TEACHER_RANK], -1).long(),
        argmax_N=scatter(merged[:, Merged.ARGMAX], -1).long(),
        teacher_argmax_N=scatter(merged[:, Merged.TEACHER_ARGMAX], -1).long(),
    )


def _no_rows(active_N: Tensor, dtype: torch.dtype) -> RowStatistics:
    numbers_N, ids_N = active_N.to(dtype), active_N.long()
    return RowStatistics(
        valid_N=active_N,
        weight_N=numbers_N,
        loss_N=numbers_N,
        label_logprob_N=numbers_N,
        kl_N=numbers_N,
        alpha_N=numbers_N,
        entropy_N=numbers_N,
        label_rank_N=ids_N,
        teacher_rank_N=ids_N,
        argmax_N=ids_N,
        teacher_argmax_N=ids_N,
    )
