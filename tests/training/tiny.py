"""A run small enough for a test: a made-up store, features that depend on the pack alone, a drafter of two layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, FeatureBatch, block_position_weights
from tp_dflash.config.objective import Objective
from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.config.placement import PlacementConfig
from tp_dflash.data.batch_plan import BatchPlan
from tp_dflash.drafter import Drafter, DrafterShape
from tp_dflash.head import HeadShard, LogitsPrecision, VocabRange
from tp_dflash.parallel import Groups, open_groups
from tp_dflash.placement import Placement
from tp_dflash.streams import StreamMeters
from tp_dflash.training.course import Course, Cursor
from tp_dflash.training.drafter_loop import DrafterLoop
from tp_dflash.training.drafter_step import DrafterStep, StepSettings
from tp_dflash.training.heads import HeadPair
from tp_dflash.training.optimizer import DrafterOptimizer
from tp_dflash.training.pack_feed import LayoutRules, PackFeed
from tp_dflash.training.sharding import drafter_mesh, shard_drafter

WIDTH, VOCABULARY, BLOCK, TOKEN_BUDGET, ANCHORS = 16, 23, 4, 24, 6
SHAPE = DrafterShape(
    hidden_size=WIDTH,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    layer_types=("full_attention", "full_attention"),
    sliding_window=None,
    sliding_causal=True,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    block_size=BLOCK,
    mask_token_id=3,
    label_mode="same_position",
    target_layer_ids=(1, 2),
    num_target_layers=4,
    vocab_size=VOCABULARY,
    max_positions=128,
)


@dataclass(frozen=True)
class MemoryStore:
    """Documents in memory: ``masked`` of them (by id) have no supervised token."""

    lengths: tuple[int, ...]
    masked: frozenset[int] = frozenset()

    def document(self, document_id: int) -> Document:
        generator = torch.Generator().manual_seed(document_id)
        length = self.lengths[document_id]
        tokens_S = torch.randint(VOCABULARY, (length,), generator=generator)
        return Document(document_id, tokens_S, torch.full((length,), document_id not in self.masked))


class MadeUpFeatures:
    """Features drawn from the documents, so that they do not depend on who computes them."""

    def meters(self) -> StreamMeters:
        return StreamMeters(0, 0, 0, 1.0, 0.0, 0.0)

    def finish(self) -> None:
        pass

    def expect(self, layout: BlockLayout) -> None:
        pass

    def receive(self, layout: BlockLayout) -> FeatureBatch:
        pack = layout.pack
        rows = [self._rows(document) for document in pack.documents]
        all_TX = torch.cat(rows) if rows else torch.empty(0, 4 * WIDTH)
        return FeatureBatch(
            pack_id=pack.pack_id,
            features_TF=all_TX[:, : 2 * WIDTH],
            teacher_hidden_UD=3 * all_TX[layout.teacher_row_U, 2 * WIDTH : 3 * WIDTH],
            anchor_embeddings_AD=all_TX[layout.anchor_A, 3 * WIDTH :],
        )

    def _rows(self, document: Document) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 + document.document_id)
        return torch.randn(document.num_tokens, 4 * WIDTH, generator=generator)


@dataclass(frozen=True)
class TinyRun:
    """What a test varies."""

    lengths: tuple[int, ...] = (11, 9, 14, 20, 7, 16, 12, 10)
    masked: frozenset[int] = frozenset()
    drafter: str = "0"
    head: str | None = None
    tensor_parallel: int = 1
    nodes: int = 1
    drafter_shards: Literal["all", "node"] = "all"
    accumulation: int = 1
    epochs: int = 2
    max_steps: int | None = None
    objective: Objective = field(default_factory=lambda: Objective(kl=0.7, ce=0.3))
    dtype: torch.dtype = torch.float32
    logits_precision: LogitsPrecision = "float32"
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def place(self) -> Placement:
        config = PlacementConfig(
            drafter=self.drafter,
            head=self.head,
            tensor_parallel=self.tensor_parallel,
            drafter_shards=self.drafter_shards,
        )
        return Placement.resolve(config, dist.get_world_size(), dist.get_world_size() // self.nodes)

    def course(self, placement: Placement, cursor: Cursor) -> Course:
        plan = BatchPlan(
            length_D=np.array(self.lengths),
            token_budget=TOKEN_BUDGET,
            seed=5,
            packs_per_step=len(placement.drafters) * self.accumulation,
        )
        return Course(plan, self.epochs, self.max_steps, cursor)


def heads_of(placement: Placement, rank: int, dtype: torch.dtype) -> HeadPair:
    ranks = placement.head_group_of(rank).ranks
    weight_VD = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(77)).to(dtype)
    shard = HeadShard.cut(weight_VD, VocabRange.split(VOCABULARY, len(ranks))[ranks.index(rank)])
    return HeadPair(shard, shard)


def build_step(run: TinyRun, placement: Placement, groups: Groups, rank: int) -> DrafterStep:
    """A sharded drafter with its optimizer and heads, as a run would build them."""
    assert groups.drafters is not None
    assert groups.head is not None
    assert groups.workers is not None
    with torch.device("meta"):
        drafter = Drafter(SHAPE)
    shard_drafter(drafter, list(drafter.layers), drafter_mesh(placement, groups, torch.device("cpu")), run.dtype)
    drafter.to_empty(device="cpu")
    drafter.initialise(seed=9)
    optimizer = DrafterOptimizer(drafter, run.optimizer)
    settings = StepSettings(
        objective=run.objective,
        weights_B=block_position_weights(BLOCK, "uniform" if run.objective.weights == "dpace" else "decay", gamma=3.0),
        token_budget=TOKEN_BUDGET,
        num_blocks=ANCHORS,
        head_chunk_rows=8,
        logits_precision=run.logits_precision,
        max_grad_norm=1.0,
    )
    mask_embedding_D = torch.randn(WIDTH, generator=torch.Generator().manual_seed(4)).to(run.dtype)
    return DrafterStep(
        drafter,
        optimizer,
        heads_of(placement, rank, run.dtype),
        mask_embedding_D,
        settings,
        drafters=groups.drafters,
        copies=len(placement.shard_groups),
        head_group=groups.head,
        workers=groups.workers,
    )


def build_loop(run: TinyRun, placement: Placement, groups: Groups, rank: int, cursor: Cursor = Cursor()) -> DrafterLoop:  # noqa: B008
    rules = LayoutRules(AnchorCaps(ANCHORS), seed=5, block_size=BLOCK, label_mode="same_position")
    course = run.course(placement, cursor)
    feed = PackFeed(
        course, MemoryStore(run.lengths, run.masked), rules, lambda pack: placement.drafter_of(pack) == rank
    )
    step = build_step(run, placement, groups, rank)
    return DrafterLoop(
        run.accumulation, OptimizerConfig(), course, feed, MadeUpFeatures(), step, placement.head_group_of(rank).ranks
    )


def open_tiny(run: TinyRun, rank: int) -> tuple[Placement, Groups]:
    placement = run.place()
    return placement, open_groups(placement, rank, torch.device("cpu"), timeout_seconds=30)


def full_parameters(drafter: Drafter) -> dict[str, torch.Tensor]:
    """Whole parameters on every rank."""
    return {name: parameter.full_tensor().detach().clone() for name, parameter in drafter.named_parameters()}
