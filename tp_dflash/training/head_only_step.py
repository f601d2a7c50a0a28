"""A head-only rank's share of every step: it owns a vocab range, brings no rows, and serves its group's head loss."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup

from tp_dflash.config.objective import Objective
from tp_dflash.head import LogitsPrecision, sharded_head_loss
from tp_dflash.training.drafter_step import bucket
from tp_dflash.training.heads import HeadPair


class HeadOnlyStep:
    """Takes part in each micro-step's head loss with empty tensors; it has no parameters and no update."""

    def __init__(
        self,
        heads: HeadPair,
        objective: Objective,
        *,
        block_size: int,
        num_blocks: int,
        head_chunk_rows: int,
        logits_precision: LogitsPrecision,
        head_group: ProcessGroup,
        workers: ProcessGroup,
    ) -> None:
        self.heads = heads
        self.objective = objective
        self.block_size = block_size
        self.num_rows = num_blocks * block_size
        self.head_chunk_rows = head_chunk_rows
        self.logits_precision: LogitsPrecision = logits_precision
        self.head_group = head_group
        self.workers = workers

    def micro_step(self, active_rows: int, teacher_rows: int) -> None:
        """Serve one head loss; the sizes are those that the drafter ranks of the group pass."""
        weight_vD = self.heads.teacher.weight_vD
        rows_0D = weight_vD.new_empty(0, weight_vD.shape[1])
        index_0 = torch.empty(0, dtype=torch.int64, device=weight_vD.device)
        sharded_head_loss(
            rows_0D.clone().requires_grad_(),
            rows_0D,
            index_0,
            index_0,
            torch.empty(0, dtype=torch.float32, device=weight_vD.device),
            drafter_head=self.heads.drafter,
            teacher_head=self.heads.teacher,
            objective=self.objective,
            block_size=self.block_size,
            group=self.head_group,
            host_group=self.workers,
            chunk_rows=self.head_chunk_rows,
            logits_precision=self.logits_precision,
            active_rows=bucket(active_rows, self.num_rows),
            teacher_rows=bucket(teacher_rows, self.num_rows),
        )
