"""A run's context with made-up documents: what training builds its roles from, without data, tokenizer or checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tp_dflash.bench.made_up_documents import MadeUpDocuments
from tp_dflash.blocks import BlockLayout
from tp_dflash.config.run import RunConfig
from tp_dflash.data import BatchPlan, DataSplits, PreparationReport
from tp_dflash.drafter import DrafterShape
from tp_dflash.parallel import open_groups, pick_device
from tp_dflash.placement import Placement
from tp_dflash.target import read_target_facts
from tp_dflash.training.course import Course, Cursor
from tp_dflash.training.pack_feed import LayoutRules
from tp_dflash.training.run_context import RunContext
from tp_dflash.training.run_folder import RunFolder


def build_bench_context(
    config: RunConfig, placement: Placement, rank: int, lengths: np.ndarray, num_steps: int
) -> RunContext:
    """Open groups and lay out ``num_steps`` steps over documents of ``lengths``; to be called by all ranks."""
    place = placement.places[rank]
    device = pick_device(place.gpu)
    groups = open_groups(placement, rank, device, config.training.timeout_seconds)
    facts = read_target_facts(config.target)
    shape = DrafterShape.of(config.drafter, facts)
    documents = MadeUpDocuments(lengths, facts.vocab_size, shape.mask_token_id)
    packs_per_step = len(placement.drafters) * config.training.accumulation
    plan = BatchPlan(lengths, config.data.token_budget, config.training.seed, packs_per_step)
    return RunContext(
        config=config,
        placement=placement,
        place=place,
        device=device,
        groups=groups,
        folder=RunFolder(Path(config.training.run_folder)),
        facts=facts,
        shape=shape,
        data=DataSplits(documents, None, PreparationReport(), "made up"),
        rules=LayoutRules.of(config, shape),
        course=Course(plan, epochs=1, max_steps=num_steps, cursor=Cursor()),
        checkpoint=None,
        identity="",
        notices=(),
    )


def layout_of(context: RunContext, pack_id: int) -> BlockLayout:
    """Blocks of one pack of the first epoch."""
    pack = context.course.plan.plan_epoch(0).pack(context.data.train, pack_id)
    rules = context.rules
    return BlockLayout.build(pack, rules.caps, rules.seed, rules.block_size, rules.label_mode)
