"""How long a pack and a step take, from counted work and measured rates.

In: sizes and a calibration. Out: seconds of each phase for one target rank and one drafter rank, and the rates of the two
sides of the run. Work is counted for full packs of documents as long as they may be; shorter ones cost less attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tp_dflash.planner.calibration import Calibration
from tp_dflash.planner.head_memory import head_row_plan
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.planner.target_memory import pack_bytes

_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class StepTime:
    """Seconds. target: one pack on one target, of one rank or several. drafter_*: one pack on one drafter rank; update: once a step."""

    target: float
    drafter_layers: float
    drafter_attention: float
    head: float
    update: float
    tokens_per_pack: int
    num_targets: int
    num_drafters: int
    accumulation: int
    colocated: bool

    @property
    def drafter_pack(self) -> float:
        """One pack on a drafter rank, its share of the update included."""
        return self.drafter_layers + self.drafter_attention + self.head + self.update / self.accumulation

    @property
    def pool_packs_per_second(self) -> float:
        """What the targets alone could deliver."""
        return self.num_targets / self.target

    @property
    def drafter_packs_per_second(self) -> float:
        """What the drafters alone could train on."""
        return self.num_drafters / self.drafter_pack

    @property
    def packs_per_second(self) -> float:
        """Both together: the slower side where they run beside each other, one after the other where colocated."""
        if self.colocated:
            return self.num_drafters / (self.target + self.drafter_pack)
        return min(self.pool_packs_per_second, self.drafter_packs_per_second)

    @property
    def tokens_per_second(self) -> float:
        return self.packs_per_second * self.tokens_per_pack

    @property
    def target_only_tokens_per_second(self) -> float:
        return self.pool_packs_per_second * self.tokens_per_pack

    @property
    def step_seconds(self) -> float:
        """One optimizer step: every drafter rank trains on ``accumulation`` packs."""
        return self.accumulation * self.num_drafters / self.packs_per_second

    @property
    def drafters_a_target(self) -> float:
        """Drafter ranks that one target rank keeps busy; the placement is in balance when it has so many."""
        return self.drafter_pack / self.target


def predict_time(sizes: RunSizes, calibration: Calibration) -> StepTime:
    """Times of the phases; see the functions for what is counted."""
    head_tflop = head_flops(sizes) / sizes.head_ranks * sizes.row_ranks / _TERA
    return StepTime(
        target=_target_seconds(sizes, calibration),
        drafter_layers=layer_flops(sizes) / _TERA / calibration.drafter_tflops,
        drafter_attention=attention_flops(sizes) / _TERA / calibration.attention_tflops,
        head=head_tflop / calibration.head_tflops,
        update=_update_seconds(sizes, calibration),
        tokens_per_pack=sizes.tokens,
        num_targets=sizes.num_targets,
        num_drafters=sizes.num_drafters,
        accumulation=sizes.config.training.accumulation,
        colocated=sizes.placement.colocated,
    )


def _target_seconds(sizes: RunSizes, calibration: Calibration) -> float:
    """Work shared by the ranks of a target, and two sums over them a layer: a ring moves 2 (p - 1) / p of D numbers a token."""
    ranks, facts = sizes.target_ranks, sizes.facts
    summed = 2 * facts.num_layers * sizes.tokens * facts.hidden_size * sizes.target_bytes
    exchange = summed * 2 * (ranks - 1) / ranks / calibration.node_gb_per_s / _GIGA
    return target_flops(sizes) / ranks / _TERA / calibration.target_tflops + exchange


def target_flops(sizes: RunSizes) -> float:
    """One pack through the decoder: 2 x parameters x T without the embedding table, and causal attention."""
    facts = sizes.facts
    matrices = sizes.target_parameters - facts.vocab_size * facts.hidden_size
    length = min(sizes.config.data.max_length, sizes.tokens)
    attention = 4 * facts.num_layers * facts.num_heads * facts.head_dim * sizes.tokens * (length + 1) / 2
    return 2.0 * matrices * sizes.tokens + attention


def layer_flops(sizes: RunSizes) -> float:
    """Drafter's matrix products of one pack: block rows forward and backward, context without its input's gradient.

    6 x parameters x N for the block rows; context keys and values 6 x D x 2 G E x T a layer (their input c needs a
    gradient, fc trains); fc 4 x F x D x T, since the features need none. Recomputation adds a forward of every layer.
    """
    shape = sizes.shape
    matrices = sizes.layer_parameters - 2 * shape.hidden_size - 2 * shape.head_dim
    context = 2 * shape.hidden_size * 2 * shape.kv_size * sizes.tokens
    forward = shape.num_layers * (2.0 * matrices * sizes.rows + context)
    passes = 4 if sizes.config.drafter.activation_checkpointing else 3
    return passes * forward + 4.0 * shape.feature_size * shape.hidden_size * sizes.tokens


def attention_flops(sizes: RunSizes) -> float:
    """Attention of N rows to the context before their anchor and to their block: 4 H E a pair, 3.5 times for both passes."""
    shape = sizes.shape
    length = min(sizes.config.data.max_length, sizes.tokens)
    pairs = sum(
        sizes.rows
        * (_mean_context(length, shape.sliding_window if kind == "sliding_attention" else None) + shape.block_size)
        for kind in shape.layer_types
    )
    passes = 4.5 if sizes.config.drafter.activation_checkpointing else 3.5
    return passes * 4.0 * pairs * shape.query_size


def _mean_context(length: int, window: int | None) -> float:
    """Mean number of context rows that a row sees whose anchor is anywhere in a document of ``length``."""
    if window is None or window >= length:
        return length / 2
    return (window * window / 2 + (length - window) * window) / length


def head_flops(sizes: RunSizes) -> float:
    """Of one rank's rows over the whole vocabulary: drafter logits, their pull-back, and each unique teacher row once."""
    plan = head_row_plan(sizes)
    unique = min(expected_teacher_rows(sizes), float(plan.num_teacher_rows))
    return 2.0 * sizes.facts.vocab_size * sizes.shape.hidden_size * (2 * sizes.trained_rows + unique)


def expected_teacher_rows(sizes: RunSizes) -> float:
    """Unique rows among those of blocks at random places: T (1 - exp(-rows / T)); every row its own if not shared."""
    if sizes.config.objective.weights == "dpace":
        return float(sizes.trained_rows)
    return sizes.tokens * -math.expm1(-sizes.trained_rows / sizes.tokens)


def _update_seconds(sizes: RunSizes, calibration: Calibration) -> float:
    """Optimizer (weights, two moments, gradient read, three written) and norm over this rank's share; fixed overhead."""
    ranks, copies = sizes.shard_ranks, sizes.num_copies
    share = sizes.shape.num_parameters / ranks
    moved = share * 4 * (7 + 3)
    spans_nodes = sizes.placement.num_nodes > 1 and copies == 1
    link = calibration.network_gb_per_s if spans_nodes else calibration.node_gb_per_s
    # Gathers run beside the layers' work; what is left over is one layer's reduction and the root's, and its sum over copies.
    exchange = sizes.layer_parameters * 6 * (ranks - 1) / ranks / link / _GIGA
    exchange += sizes.layer_parameters / ranks * 8 * (copies - 1) / copies / calibration.network_gb_per_s / _GIGA
    return moved / calibration.memory_gb_per_s / _GIGA + exchange + calibration.step_overhead_ms / 1e3


def stream_gb_per_second(sizes: RunSizes, time: StepTime) -> float:
    """What one target rank sends at the run's rate."""
    return pack_bytes(sizes) * time.packs_per_second / sizes.num_targets / _GIGA
