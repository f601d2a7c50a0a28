"""What a run measures while it trains: sums and counts on the device, divided once when they are read.

In: per-row statistics of every micro-step. Out, over all drafter ranks: loss, and per block position accuracy, label
probability, acceptance probability; per block streak and expected acceptance. However rows are grouped into ranks and
micro-batches, the figures are the same, because nothing is averaged before all of it is there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.head import RowStatistics

_ROWS, _WEIGHT, _LOSS, _LABEL_HIT, _TEACHER_HIT, _LABEL_PROB, _ALPHA, _KL, _ENTROPY = range(9)
_BLOCKS, _STREAK, _EXPECTED = range(3)
_STEPS, _BAD, _NORM, _BAD_RUN, _LONGEST_BAD_RUN = range(5)


class StepMeters:
    """Collects until it is read; ``read`` starts anew. Positions are counted 0..B-1, the anchor at 0."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.positions_BS = torch.zeros(block_size, 9, dtype=torch.float64, device=device)
        self.blocks_S = torch.zeros(3, dtype=torch.float64, device=device)
        self.steps_S = torch.zeros(5, dtype=torch.float64, device=device)
        self.empty_steps = 0

    def add(self, statistics: RowStatistics) -> None:
        """Add one micro-step's rows; rows that are not valid count for nothing."""
        valid_N = statistics.valid_N
        columns = (
            valid_N,
            statistics.weight_N,
            statistics.weight_N * statistics.loss_N,
            statistics.label_rank_N == 0,
            statistics.teacher_rank_N == 0,
            statistics.label_prob_N,
            statistics.alpha_N,
            statistics.kl_N,
            statistics.entropy_N,
        )
        values_NS = torch.stack([column.double() for column in columns], dim=-1) * valid_N[:, None]
        self.positions_BS += rearrange(values_NS, "(A B) S -> A B S", B=self.block_size).sum(dim=0)
        self._add_blocks(valid_N, values_NS)

    def _add_blocks(self, valid_N: Tensor, values_NS: Tensor) -> None:
        """A streak is the leading run of hits; an untrained first position (the anchor) does not end it, a gap does."""
        valid_AB = rearrange(valid_N, "(A B) -> A B", B=self.block_size)
        values_ABS = rearrange(values_NS, "(A B) S -> A B S", B=self.block_size)
        trained_B = self._trained_positions(valid_AB)
        hit_AB = torch.where(trained_B, values_ABS[..., _LABEL_HIT], 1.0)
        accepted_AB = torch.where(trained_B, values_ABS[..., _ALPHA], 1.0)
        self.blocks_S[_BLOCKS] += valid_AB.any(dim=1).sum()
        self.blocks_S[_STREAK] += (hit_AB.cumprod(dim=1) * valid_AB).sum()
        self.blocks_S[_EXPECTED] += (accepted_AB.cumprod(dim=1) * valid_AB).sum()

    def _trained_positions(self, valid_AB: Tensor) -> Tensor:
        """Position 0 is trained only with next-token labels: then some block's row 0 is valid."""
        trained_B = torch.ones(self.block_size, dtype=torch.bool, device=valid_AB.device)
        trained_B[0] = valid_AB[:, 0].any()
        return trained_B

    def end_step(self, norm: Tensor, bad: Tensor) -> None:
        """Count an update: its gradient norm, or that it was skipped because the gradient was not finite."""
        self.steps_S[_STEPS] += 1
        self.steps_S[_BAD] += bad
        self.steps_S[_NORM] += torch.where(bad > 0, 0.0, norm)
        self.steps_S[_BAD_RUN] = (self.steps_S[_BAD_RUN] + 1) * bad
        self.steps_S[_LONGEST_BAD_RUN] = torch.maximum(self.steps_S[_LONGEST_BAD_RUN], self.steps_S[_BAD_RUN])

    def end_empty_step(self) -> None:
        """Count a step in which no rank had a row to train."""
        self.empty_steps += 1

    def read(self, group: ProcessGroup) -> dict[str, float | list[float]]:
        """Figures over all ranks of ``group`` since the last reading; waits for the device.

        all-reduce (sum) of the sums, no adjoint. Undefined figures (nothing counted) are NaN.
        """
        sums = torch.cat([self.positions_BS.flatten(), self.blocks_S])
        dist.all_reduce(sums, group=group)
        positions_BS = sums[: self.positions_BS.numel()].view_as(self.positions_BS).cpu()
        blocks_S, steps_S = sums[self.positions_BS.numel() :].cpu(), self.steps_S.cpu()
        figures = _figures(positions_BS, blocks_S, steps_S) | {"empty_steps": float(self.empty_steps)}
        bad_run = float(steps_S[_BAD_RUN])
        self.positions_BS.zero_(), self.blocks_S.zero_(), self.steps_S.zero_()
        self.steps_S[_BAD_RUN] = bad_run
        self.empty_steps = 0
        return figures


def _figures(positions_BS: Tensor, blocks_S: Tensor, steps_S: Tensor) -> dict[str, float | list[float]]:
    total_S = positions_BS.sum(dim=0)
    rate_S = total_S / total_S[_ROWS]
    rate_BS = positions_BS / positions_BS[:, _ROWS, None]
    good_steps = steps_S[_STEPS] - steps_S[_BAD]
    return {
        "loss": float(total_S[_LOSS] / total_S[_WEIGHT]),
        "rows": float(total_S[_ROWS]),
        "accuracy": float(rate_S[_LABEL_HIT]),
        "teacher_accuracy": float(rate_S[_TEACHER_HIT]),
        "label_probability": float(rate_S[_LABEL_PROB]),
        "alpha": float(rate_S[_ALPHA]),
        "kl": float(rate_S[_KL]),
        "entropy": float(rate_S[_ENTROPY]),
        "streak": float(blocks_S[_STREAK] / blocks_S[_BLOCKS]),
        "expected_streak": float(blocks_S[_EXPECTED] / blocks_S[_BLOCKS]),
        "accuracy_by_position": rate_BS[:, _LABEL_HIT].tolist(),
        "teacher_accuracy_by_position": rate_BS[:, _TEACHER_HIT].tolist(),
        "label_probability_by_position": rate_BS[:, _LABEL_PROB].tolist(),
        "alpha_by_position": rate_BS[:, _ALPHA].tolist(),
        "grad_norm": float(steps_S[_NORM] / good_steps),
        "skipped_steps": float(steps_S[_BAD]),
        "longest_skipped_run": float(steps_S[_LONGEST_BAD_RUN]),
    }
