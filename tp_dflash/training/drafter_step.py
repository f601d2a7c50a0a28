"""The mathematics of one optimizer step on a drafter rank.

In: layouts and features of this rank's packs, the step's facts. Out: moved parameters and what the meters saw. The loop
decides when; nothing here counts steps, writes files or waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockBatch, BlockLayout, FeatureBatch, FixedShapes
from tp_dflash.config.objective import Objective
from tp_dflash.drafter import Drafter
from tp_dflash.head import LogitsPrecision, sharded_head_loss
from tp_dflash.training.gradients import ShardedParameters, finish_gradients
from tp_dflash.training.heads import HeadPair
from tp_dflash.training.meters import StepMeters
from tp_dflash.training.optimizer import DrafterOptimizer
from tp_dflash.training.phase import Phase
from tp_dflash.training.trouble import Trouble

# Sizes that follow the data are rounded up, so that few different ones occur in a run.
_BUCKET_ROWS = 256


@dataclass(frozen=True)
class StepSettings:
    """What does not change from step to step. weights_B: block position weights. token_budget, num_blocks: T and A."""

    objective: Objective
    weights_B: Tensor
    token_budget: int
    num_blocks: int
    head_chunk_rows: int
    logits_precision: LogitsPrecision
    max_grad_norm: float


def bucket(rows: int, largest: int) -> int:
    """``rows`` rounded up to a bucket, at least one bucket's worth, at most ``largest``."""
    return min(max(1, -(-rows // _BUCKET_ROWS)) * _BUCKET_ROWS, largest)


class DrafterStep:
    """One drafter rank's share of every step: micro-steps, then one update."""

    def __init__(
        self,
        drafter: Drafter,
        optimizer: DrafterOptimizer,
        heads: HeadPair,
        mask_embedding_D: Tensor,
        settings: StepSettings,
        *,
        drafters: ProcessGroup,
        copies: int,
        head_group: ProcessGroup,
        workers: ProcessGroup,
    ) -> None:
        """copies: of the drafter's state, each in shards over an equal part of ``drafters``."""
        self.drafter = drafter
        self.optimizer = optimizer
        self.heads = heads
        self.mask_embedding_D = mask_embedding_D
        self.settings = settings
        self.drafters = drafters
        self.copies = copies
        self.head_group = head_group
        self.workers = workers
        self.device = mask_embedding_D.device
        self.meters = StepMeters(drafter.shape.block_size, self.device)
        self.trouble = Trouble()
        self._fault_readers: list[Callable[[], str | None]] = []
        self.phase = Phase()
        self._weight_sum = torch.zeros((), dtype=torch.float32, device=self.device)

    def micro_step(self, layout: BlockLayout, features: FeatureBatch, active_rows: int, teacher_rows: int) -> None:
        """Forward and backward of one pack; gradients and weights add up.

        active_rows, teacher_rows: the most that any rank of the head group brings in this micro-step.
        """
        settings = self.settings
        self.phase.enter("head")
        num_rows = settings.num_blocks * layout.block_size
        shapes = FixedShapes(settings.token_budget, settings.num_blocks, bucket(teacher_rows, num_rows))
        batch = BlockBatch.assemble(layout, features, settings.weights_B, shapes, self.device)
        hidden_ND = self.drafter(batch.features_TF, batch.anchor_embeddings_AD, self.mask_embedding_D, batch.geometry)
        loss = sharded_head_loss(
            hidden_ND,
            batch.teacher_hidden_UD.to(hidden_ND.dtype),
            batch.teacher_index_N,
            batch.labels_N,
            batch.weights_N,
            drafter_head=self.heads.drafter,
            teacher_head=self.heads.teacher,
            objective=settings.objective,
            block_size=layout.block_size,
            group=self.head_group,
            host_group=self.workers,
            chunk_rows=settings.head_chunk_rows,
            logits_precision=settings.logits_precision,
            active_rows=bucket(active_rows, num_rows),
            teacher_rows=shapes.num_teacher_rows,
        )
        self.phase.enter("backward")
        loss.loss_sum.backward()
        self._weight_sum += loss.weight_sum
        self.meters.add(loss.statistics)
        self.trouble.add_pack(layout, features, loss.loss_sum)
        self._fault_readers.append(loss.fault_reader())

    def check_head_calls(self, any_skipped: bool) -> None:
        """ValueError if a step since the last check was skipped because the head loss was given wrong labels or sizes.

        Waits for the device; to be called where the meters are read, on all ranks alike.
        """
        readers, self._fault_readers = self._fault_readers, []
        problem = next((text for reader in readers if (text := reader())), None) if any_skipped else None
        if problem:
            raise ValueError(f"head loss: {problem}")

    def update(self, rate: float) -> None:
        """One optimizer step from what the micro-steps added up: gradients of the global ratio, clipped."""
        self.phase.enter("update")
        weight_sum = self._weight_sum
        dist.all_reduce(weight_sum, group=self.drafters)
        # Summed over all copies, not over one: then no copy can get other bits than another.
        parts = [ShardedParameters(list(self.drafter.parameters()), self.drafters, self.copies)]
        norm, bad = finish_gradients(parts, weight_sum, self.settings.max_grad_norm)
        self.optimizer.step(rate, bad)
        self.meters.end_step(norm, bad)
        self.trouble.end_step(self.phase.step, bad)
        self._weight_sum = torch.zeros_like(weight_sum)

    def pass_over(self) -> None:
        """End a step in which no rank trains a row: parameters, moments and counts stay as they are."""
        self.optimizer.zero_grad()
        self._weight_sum.zero_()
        self.meters.end_empty_step()
        self.trouble.end_step(self.phase.step, None)
