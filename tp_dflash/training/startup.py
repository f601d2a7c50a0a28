"""What is told before the first step: who does what, and the arithmetic of the run with its numbers."""

from __future__ import annotations

from tp_dflash.training.run_context import RunContext


def startup_lines(context: RunContext) -> list[str]:
    """Lines for a person: placement, sizes, steps, notices about checkpoints."""
    config, placement, shape, course = context.config, context.placement, context.shape, context.course
    drafters, accumulation = len(placement.drafters), config.training.accumulation
    tokens, rows = config.data.token_budget, config.anchors.per_pack * shape.block_size
    packs = drafters * accumulation
    store = context.data.train
    first_epoch = course.plan.plan_epoch(course.cursor.epoch)
    roles = ", ".join(f"rank {place.rank} GPU {place.gpu} {place.role}" for place in placement.places)
    heads = "; ".join(f"ranks {', '.join(map(str, group.ranks))}" for group in placement.head_groups)
    shards = len(placement.head_groups[0].ranks)
    copies = placement.shard_groups
    state = f"over {len(copies[0])} drafter ranks" + (
        f", a copy on each of {len(copies)} nodes" if len(copies) > 1 else ""
    )
    lines = [
        *context.notices,
        f"who: {roles}",
        *_shared_targets(context),
        f"lm_head: {context.facts.vocab_size:,} rows over {shards} shards ({heads}), about {-(-context.facts.vocab_size // shards):,} each",
        f"drafter: {shape.num_layers} layers, {shape.num_parameters:,} parameters, block {shape.block_size}, taps {list(shape.target_layer_ids)}, state {state}",
        f"data: {store.num_documents:,} documents, {store.num_tokens:,} tokens; {context.data.report.summary()}",
        f"a step: {drafters} drafter ranks x {accumulation} packs = {packs} packs, at most {packs} x {tokens:,} = {packs * tokens:,} tokens "
        f"and {packs} x {config.anchors.per_pack} anchors x {shape.block_size} = {packs * rows:,} block rows",
        f"steps: {first_epoch.num_filled_packs} packs / {packs} = {-(-first_epoch.num_filled_packs // packs)} an epoch, {config.training.epochs} epochs, "
        f"{course.total_steps} in all, from step {course.cursor.step}",
    ]
    if context.data.validation is None and (config.data.validation or config.data.validation_fraction):
        lines.append(
            "validation: no documents came out of data.validation or data.validation_fraction; none are judged"
        )
    if context.checkpoint is not None:
        lines.append(f"continued from {context.checkpoint.path}")
    return lines


def _shared_targets(context: RunContext) -> list[str]:
    groups = context.placement.target_groups
    if len(groups[0]) == 1:
        return []
    members = "; ".join(f"ranks {', '.join(map(str, group))}" for group in groups)
    return [f"target: {len(groups)} x {len(groups[0])} ranks that hold one together ({members}), the first sends"]
