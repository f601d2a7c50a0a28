"""The result of a head loss: sums that can be added over ranks and micro-batches, and facts about each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from tp_dflash.head.row_metadata import describe_fault
from tp_dflash.head.row_statistics import RowStatistics


@dataclass(frozen=True, eq=False)
class HeadLoss:
    """One rank's part of the loss of a call.

    loss_sum: differentiable scalar, the sum of weight x loss over this rank's own rows; the sum over ranks and
    micro-batches is the numerator of the step's loss. weight_sum: scalar, the sum of the same rows' weights: the
    denominator's part. Neither is ever divided here. statistics: per row, detached. faults: what ``raise_faults`` reads.
    """

    loss_sum: Tensor
    weight_sum: Tensor
    statistics: RowStatistics
    faults: Tensor
    row_ranks: tuple[int, ...]
    vocabulary: int

    def raise_faults(self) -> None:
        """Raise ValueError if some rank's labels, teacher indices, weights or buckets were wrong; the same on all ranks.

        On a GPU it waits for the device, so call it where the loss is read anyway: a faulty call's ``loss_sum`` is NaN.
        """
        problem = self.fault_reader()()
        if problem:
            raise ValueError(f"head loss: {problem}")

    def fault_reader(self) -> Callable[[], str | None]:
        """What ``raise_faults`` would say, to be asked later; it keeps no rows alive, and waits for the device when called."""
        return partial(describe_fault, self.faults, self.row_ranks, self.vocabulary)
