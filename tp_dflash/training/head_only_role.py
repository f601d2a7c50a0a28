"""A head-only rank's part of a run: it loads its vocab range and serves every head loss of its group."""

from __future__ import annotations

from tp_dflash.parallel.device import peak_memory_bytes
from tp_dflash.training.course import BetweenSteps, Cursor
from tp_dflash.training.head_only_loop import run_head_only
from tp_dflash.training.head_only_step import HeadOnlyStep
from tp_dflash.training.heads import load_heads
from tp_dflash.training.heartbeat import Heartbeat
from tp_dflash.training.run_context import RunContext


class HeadOnlyRole:
    """Takes part in every step that is left."""

    def __init__(self, context: RunContext) -> None:
        groups, config, ranks = context.groups, context.config, context.head_ranks
        assert groups.head is not None
        assert groups.workers is not None
        self.context = context
        heads = load_heads(
            config.target, context.facts, ranks.index(context.rank), len(ranks), context.device, context.compute_dtype
        )
        self.step = HeadOnlyStep(
            heads,
            config.objective,
            block_size=context.shape.block_size,
            num_blocks=config.anchors.per_pack,
            head_chunk_rows=config.training.head_chunk_rows,
            logits_precision=config.training.logits_precision,
            head_group=groups.head,
            workers=groups.workers,
        )

    def run(self, between_steps: BetweenSteps) -> bool:
        """Serve until the course ends; False if all ranks agreed to stop early."""
        context = self.context
        context.phase.enter("head")

        def after_step(cursor: Cursor) -> bool:
            if cursor.step % context.config.logging.every_steps == 0:
                peak = peak_memory_bytes(context.device)
                beat = Heartbeat(context.rank, context.place.role, context.place.gpu, cursor.step, peak, 0.0)
                beat.write(context.folder.ranks)
            context.phase.enter("head", cursor.step)
            return between_steps(cursor)

        return run_head_only(
            context.course,
            self.step,
            context.config.training.accumulation,
            context.head_ranks,
            after_step,
            context.stop_wanted,
        )
