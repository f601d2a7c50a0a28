"""The loop over chunks: project, reduce to statistics, exchange, form the gradient in place, pull it back, send it home.

Comes in: rows of all ranks by way of ``RowExchange``, this rank's two head shards. Goes out: statistics of this rank's own
rows, its hidden gradient and its shard's weight gradient. Never more than a chunk of logits exists.

Everything is enqueued in one line. A product of this size fills a GPU to its last multiprocessor and its power limit: passes
or collectives that run beside one slow it by more than they gain (docs/numerics.md has the measurements). What can be saved
is waiting for each other, so a chunk has one place where all its collectives stand together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.dpace import dpace_weights
from tp_dflash.head.passes import ChunkLogits, Passes
from tp_dflash.head.products import add_weight_gradient, exact_reductions, project, pull_back, working_dtype
from tp_dflash.head.row_coefficients import row_coefficients
from tp_dflash.head.row_exchange import RowExchange
from tp_dflash.head.row_metadata import RowMetadata
from tp_dflash.head.row_order import RowOrder
from tp_dflash.head.row_plan import RowPlan
from tp_dflash.head.shard_statistics import Measured, Merged, Overlap
from tp_dflash.head.vocab_range import VocabRange

# Rows of a logits buffer start at multiples of so many elements, which keeps every row aligned for wide loads.
_ROW_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class LoopInput:
    """One rank's side of a call. Rows: (N, D) and (U, D); heads: this shard's rows in the dtype of the rows they meet."""

    hidden_ND: Tensor
    teacher_hidden_UD: Tensor
    active_N: Tensor
    order: RowOrder | None
    metadata: RowMetadata
    drafter_vD: Tensor
    teacher_vD: Tensor
    vocab: VocabRange
    objective: Objective
    block_size: int
    weights_inside: bool
    wants_hidden: bool
    wants_weight: bool
    logits_dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class LoopOutput:
    """merged_nM, overlap_nO, measured_nP, scale_n: of this rank's own rows, in processing order, sums over all shards.

    grad_ND: hidden gradient of the own rows, in the caller's order, weighted by ``scale_n``. grad_vD: of the head shard.
    """

    merged_nM: Tensor
    overlap_nO: Tensor
    measured_nP: Tensor
    scale_n: Tensor
    grad_ND: Tensor | None
    grad_vD: Tensor | None


class ChunkLoop:
    """One call's walk over its chunks; made, run once and dropped."""

    def __init__(self, call: LoopInput, plan: RowPlan, exchange: RowExchange, passes: Passes) -> None:
        self.call, self.plan, self.exchange, self.passes = call, plan, exchange, passes
        self.num_ranks = len(plan.row_ranks)
        self.chunks, self.pieces = plan.chunks(), plan.teacher_pieces()
        self.wants_gradient = call.wants_hidden or call.wants_weight
        self._allocate()

    def _allocate(self) -> None:
        call, plan, new = self.call, self.plan, self.call.hidden_ND.new_empty
        width = -(-call.vocab.size // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        chunk = plan.largest_chunk * self.num_ranks
        working = working_dtype(call.hidden_ND.dtype)
        self.logits = new((chunk, width), dtype=call.logits_dtype)
        teacher_rows = plan.num_regions * plan.region_rows * self.num_ranks
        self.teacher_logits = new((teacher_rows, width), dtype=call.logits_dtype)
        own = (plan.num_rows,)
        self.merged_nM = new((*own, Merged.WIDTH), dtype=working)
        self.overlap_nO = new((*own, Overlap.WIDTH), dtype=working).zero_()
        self.scale_n = new(own, dtype=working)
        self.measured_RnP = new((self.num_ranks, *own, Measured.WIDTH), dtype=working)
        self.grad_ND = torch.zeros_like(call.hidden_ND) if call.wants_hidden else None
        self.grad_vD = new(call.drafter_vD.shape, dtype=working).zero_() if call.wants_weight else None
        self.partial_CD = new((chunk if call.wants_hidden else 0, call.hidden_ND.shape[1]), dtype=working)
        self.away: int | None = None
        self.coefficients: Tensor | None = None
        if self.wants_gradient and not call.objective.exchanges_twice and not call.weights_inside:
            self.coefficients = row_coefficients(call.objective, call.metadata.scale)

    def run(self) -> LoopOutput:
        """Walk all chunks; on a GPU this only enqueues."""
        with exact_reductions():
            for i in range(len(self.chunks)):
                self._step(i)
        return self._finish()

    def _step(self, i: int) -> None:
        if i == 0:
            self._fetch(0)
            self._project(0)
        rows_CD = self.fetched_CD
        if i + 1 < len(self.chunks):
            # Together with this chunk's exchange, so that the ranks wait for each other once a chunk.
            self._fetch(i + 1)
        self._gradient(i)
        if self.wants_gradient:
            self._pull_back(i, rows_CD)
        if i + 1 < len(self.chunks):
            self._project(i + 1)

    def _fetch(self, i: int) -> None:
        """Gather chunk i's drafter rows and the teacher rows that it is the first to need."""
        (start, stop), (first, end) = self.chunks[i], self.pieces[i]
        call = self.call
        if call.order is None:
            own_cD = call.hidden_ND.new_zeros((stop - start, call.hidden_ND.shape[1]))
            own_pD = call.teacher_hidden_UD.new_zeros((end - first, call.teacher_hidden_UD.shape[1]))
        else:
            index_c = call.order.row_n[start:stop]
            # What a row of weight 0 holds is nobody's business: a NaN in it must not reach a product.
            own_cD = torch.where(call.active_N[index_c, None], call.hidden_ND[index_c], 0.0)
            own_pD = call.teacher_hidden_UD[call.order.teacher_row_u[first:end]]
        self.fetched_CD, self.fetched_PD = self.exchange.gather_rows(own_cD), self.exchange.gather_rows(own_pD)

    def _project(self, i: int) -> None:
        """Form the logits of chunk i from the rows that were fetched, and reduce them to what this shard knows."""
        rows_PD = self.fetched_PD
        base = (i % self.plan.num_regions) * self.plan.region_rows * self.num_ranks
        out_Pv = self.teacher_logits[base : base + rows_PD.shape[0], : self.call.vocab.size]
        project(self.fetched_CD, self.call.drafter_vD, self._drafter_logits(i))
        project(rows_PD, self.call.teacher_vD, out_Pv)
        self.shard_statistics = self.passes.statistics(self._chunk_logits(i))

    def _drafter_logits(self, i: int) -> Tensor:
        start, stop = self.chunks[i]
        return self.logits[: (stop - start) * self.num_ranks, : self.call.vocab.size]

    def _chunk_logits(self, i: int) -> ChunkLogits:
        rows = self._all_ranks(i)
        return ChunkLogits(
            drafter_Cv=self._drafter_logits(i),
            teacher_Sv=self.teacher_logits[:, : self.call.vocab.size],
            slot_C=self.call.metadata.slots[rows],
            labels_C=self.call.metadata.labels[rows],
            vocab=self.call.vocab,
            inverse_temperature=1.0 / self.call.objective.temperature,
        )

    def _all_ranks(self, i: int) -> slice:
        start, stop = self.chunks[i]
        return slice(start * self.num_ranks, stop * self.num_ranks)

    def _own(self, i: int) -> slice:
        """This rank's rows inside a chunk of all ranks' rows."""
        start, stop = self.chunks[i]
        return slice(self.exchange.place * (stop - start), (self.exchange.place + 1) * (stop - start))

    def _gradient(self, i: int) -> None:
        """Exchange the statistics of chunk i, then turn its logits into their gradient."""
        call, logits = self.call, self._chunk_logits(i)
        start, stop = self.chunks[i]
        merged_CM = self.passes.merge(self.exchange.gather_statistics(self.shard_statistics))
        self._bring_home()
        self.merged_nM[start:stop] = merged_CM[self._own(i)]
        overlap_CO = None
        if call.objective.exchanges_twice:
            overlap_CO = self.exchange.gather_statistics(self.passes.overlaps(logits, merged_CM)).sum(dim=0)
            self.overlap_nO[start:stop] = overlap_CO[self._own(i)]
        coefficients_CK = self._coefficients(i, merged_CM, overlap_CO, logits.labels_C)
        self.grad_Cv, measured_CP = self.passes.gradient(logits, merged_CM, coefficients_CK)
        self.measured_RnP[:, start:stop] = measured_CP.view(self.num_ranks, stop - start, Measured.WIDTH)

    def _coefficients(self, i: int, merged_CM: Tensor, overlap_CO: Tensor | None, labels_C: Tensor) -> Tensor | None:
        start, stop = self.chunks[i]
        scale_C = self.call.metadata.scale[self._all_ranks(i)]
        if self.call.weights_inside:
            label_prob_C = torch.exp(merged_CM[:, Merged.LABEL_LOGIT] - merged_CM[:, Merged.LSE])
            scale_C = dpace_weights(label_prob_C, labels_C >= 0, self.call.block_size, self.call.objective.dpace_floor)
        self.scale_n[start:stop] = scale_C[self._own(i)]
        if not self.wants_gradient:
            return None
        if self.coefficients is not None:
            return self.coefficients[self._all_ranks(i)]
        return row_coefficients(self.call.objective, scale_C, merged_CM, overlap_CO, labels_C)

    def _pull_back(self, i: int, rows_CD: Tensor) -> None:
        call = self.call
        # One rounding to the operands' dtype, as for any gradient that meets a bf16 weight.
        grad_Cv = self.grad_Cv.to(call.drafter_vD.dtype)
        if self.grad_vD is not None:
            add_weight_gradient(grad_Cv, rows_CD, self.grad_vD)
        if self.grad_ND is None:
            return
        pull_back(grad_Cv, call.drafter_vD, self.partial_CD[: grad_Cv.shape[0]])
        self.away = i

    def _bring_home(self) -> None:
        """Sum the hidden gradient of the last chunk that was pulled back over the ranks, each its own rows, in fp32."""
        if self.away is None or self.grad_ND is None:
            return
        start, stop = self.chunks[self.away]
        own_cD = self.exchange.return_sums(self.partial_CD[: (stop - start) * self.num_ranks])
        if self.call.order is not None:
            self.grad_ND.index_copy_(0, self.call.order.row_n[start:stop], own_cD.to(self.grad_ND.dtype))
        self.away = None

    def _finish(self) -> LoopOutput:
        self._bring_home()
        measured = self.exchange.return_sums(self.measured_RnP.flatten(0, 1))
        return LoopOutput(self.merged_nM, self.overlap_nO, measured, self.scale_n, self.grad_ND, self.grad_vD)
