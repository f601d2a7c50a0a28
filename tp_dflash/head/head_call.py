"""One rank's side of a head loss between the agreement and the autograd graph: plan, order, loop, results.

Comes in: facts that all ranks agreed on, and this rank's tensors. Goes out: numbers and gradients, all detached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.call_facts import CallFacts
from tp_dflash.head.chunk_loop import ChunkLoop, LoopInput, LoopOutput
from tp_dflash.head.dpace import dpace_weights
from tp_dflash.head.head_shard import HeadShard
from tp_dflash.head.passes import Passes
from tp_dflash.head.products import working_dtype
from tp_dflash.head.row_exchange import RowExchange
from tp_dflash.head.row_metadata import RowMetadata, describe_fault, find_faults, gather_metadata
from tp_dflash.head.row_order import RowOrder, order_rows
from tp_dflash.head.row_plan import RowPlan, plan_rows
from tp_dflash.head.row_results import row_statistics
from tp_dflash.head.row_statistics import RowStatistics
from tp_dflash.head.torch_passes import TorchPasses

Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class CallResult:
    """loss_sum, weight_sum: scalars. grad_ND, grad_vD: gradients of loss_sum summed over all ranks, or None. faults: (R, 2)."""

    loss_sum: Tensor
    weight_sum: Tensor
    statistics: RowStatistics
    faults: Tensor
    grad_ND: Tensor | None
    grad_vD: Tensor | None


@dataclass(frozen=True, eq=False)
class HeadCall:
    """Everything a call was given besides its rows. everyone: the facts of all ranks of the group, in rank order."""

    everyone: list[CallFacts]
    exchange: RowExchange
    drafter_head: HeadShard
    teacher_head: HeadShard
    objective: Objective
    block_size: int
    chunk_rows: int
    active_rows: int | None
    teacher_rows: int | None
    logits_dtype: torch.dtype | None

    @property
    def trains_a_head(self) -> bool:
        return any(facts.wants_weight for facts in self.everyone)

    @property
    def weights_inside(self) -> bool:
        """dpace weights made chunk by chunk: a head's gradient mixes rows, so each must carry its weight already.

        With frozen heads a row's weight only scales its own hidden gradient and is applied at the end, which leaves the
        order of the rows free.
        """
        return self.objective.weights == "dpace" and self.trains_a_head

    def plan(self) -> RowPlan:
        """How the rows fall into chunks."""
        first = next((facts for facts in self.everyone if facts.num_rows), self.everyone[0])
        return plan_rows(
            self.exchange.row_ranks,
            first.num_rows,
            chunk_rows=self.chunk_rows,
            block_size=self.block_size,
            active_rows=self.active_rows,
            num_teacher_rows=self.teacher_rows,
            whole_blocks=self.weights_inside,
        )

    def run(self, rows: Rows) -> CallResult:
        """Compute this call on the rank's rows (hidden, teacher hidden, teacher index, labels, weights)."""
        hidden_ND, teacher_hidden_UD, _teacher_index_N, labels_N, weights_N = rows
        plan = self.plan()
        working = working_dtype(hidden_ND.dtype)
        active_N = weights_N != 0
        order = None
        fault = labels_N.new_zeros(2)
        if self.exchange.brings_rows:
            order, fault = self._order(rows, active_N, plan)
        labels_N = torch.where(active_N & (labels_N >= 0) & (labels_N < self.drafter_head.vocab.total), labels_N, -1)
        scale_N = active_N.to(working) if self.objective.weights == "dpace" else weights_N.to(working)
        metadata = gather_metadata(self.exchange, plan, order, labels_N, scale_N, fault)
        self._raise_on_host(metadata)
        output = self._loop(hidden_ND, teacher_hidden_UD, active_N, order, metadata, plan)
        return self._result(output, metadata, order, active_N, labels_N)

    def _order(self, rows: Rows, active_N: Tensor, plan: RowPlan) -> tuple[RowOrder, Tensor]:
        _, teacher_hidden_UD, teacher_index_N, labels_N, weights_N = rows
        num_teacher_rows = teacher_hidden_UD.shape[0]
        fault = find_faults(labels_N, teacher_index_N, weights_N, num_teacher_rows, self.drafter_head.vocab.total)
        safe_index_N = teacher_index_N.clamp(0, num_teacher_rows - 1)
        order = order_rows(active_N, safe_index_N, num_teacher_rows, plan, self.exchange.place)
        return order, torch.where(fault[0] > 0, fault, order.fault)

    def _raise_on_host(self, metadata: RowMetadata) -> None:
        """On the CPU values can be looked at without waiting, so a fault is an error before the first product."""
        if metadata.faults.device.type == "cpu":
            problem = describe_fault(metadata.faults, self.exchange.row_ranks, self.drafter_head.vocab.total)
            if problem:
                raise ValueError(f"head loss: {problem}")

    def _loop(
        self,
        hidden_ND: Tensor,
        teacher_hidden_UD: Tensor,
        active_N: Tensor,
        order: RowOrder | None,
        metadata: RowMetadata,
        plan: RowPlan,
    ) -> LoopOutput:
        call = LoopInput(
            hidden_ND=hidden_ND,
            teacher_hidden_UD=teacher_hidden_UD,
            active_N=active_N,
            order=order,
            metadata=metadata,
            drafter_vD=self.drafter_head.rows_vD.to(hidden_ND.dtype),
            teacher_vD=self.teacher_head.rows_vD,
            vocab=self.drafter_head.vocab,
            objective=self.objective,
            block_size=self.block_size,
            weights_inside=self.weights_inside,
            wants_hidden=any(facts.wants_hidden for facts in self.everyone),
            wants_weight=bool(self.everyone[self.exchange.rank].wants_weight),
            logits_dtype=self.logits_dtype or working_dtype(hidden_ND.dtype),
        )
        passes = pick_passes(self.objective, hidden_ND.dtype, hidden_ND.device)
        return ChunkLoop(call, plan, self.exchange, passes).run()

    def _result(
        self, output: LoopOutput, metadata: RowMetadata, order: RowOrder | None, active_N: Tensor, labels_N: Tensor
    ) -> CallResult:
        make_weights: Callable[[Tensor], Tensor] | None = None
        deferred = self.objective.weights == "dpace" and not self.weights_inside
        if deferred:
            make_weights = lambda label_prob_N: dpace_weights(  # noqa: E731
                label_prob_N, active_N, self.block_size, self.objective.dpace_floor
            )
        statistics = row_statistics(output, order, active_N, labels_N, self.objective, make_weights)
        grad_ND = output.grad_ND
        if deferred and grad_ND is not None:
            grad_ND = (grad_ND * statistics.weight_N[:, None]).to(grad_ND.dtype)
        loss_sum = (statistics.loss_N * statistics.weight_N).sum()
        return CallResult(
            loss_sum=torch.where((metadata.faults[:, 0] > 0).any(), float("nan"), loss_sum),
            weight_sum=statistics.weight_N.sum(),
            statistics=statistics,
            faults=metadata.faults,
            grad_ND=grad_ND,
            grad_vD=output.grad_vD,
        )


def pick_passes(objective: Objective, operands: torch.dtype, device: torch.device) -> Passes:
    """The Triton kernels on a GPU; plain torch on the CPU and in fp64."""
    if device.type == "cuda" and operands != torch.float64:
        # Not at the top: a machine without a GPU need not have Triton.
        from tp_dflash.head.triton_passes import TritonPasses

        return TritonPasses(objective, operands)
    return TorchPasses()
