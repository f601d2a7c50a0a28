"""The same micro-step with whole logits: what the sharded, chunked loss takes the place of."""

from __future__ import annotations

import torch

from tp_dflash.bench.step_context import layout_of
from tp_dflash.bench.step_parts import made_up_features
from tp_dflash.blocks import BlockBatch, FixedShapes
from tp_dflash.head.oracle import dense_head_loss
from tp_dflash.training.checkpoint import training_tensors
from tp_dflash.training.drafter_role import build_step
from tp_dflash.training.run_context import RunContext


def try_dense(context: RunContext) -> str | None:
    """Forward and backward of one pack with plain autograd over whole logits, optimizer moments there as in training.

    Returns None if it ran, else what the allocator said. It needs a head that is not sharded.
    """
    if len(context.head_ranks) > 1:
        raise ValueError(
            f"expected one rank a head group for whole logits, got {len(context.head_ranks)}; set placement.tensor_parallel=1"
        )
    step, layout = build_step(context), layout_of(context, context.placement.drafters.index(context.rank))
    training_tensors(step.drafter, step.optimizer)
    settings = step.settings
    shapes = FixedShapes(settings.token_budget, settings.num_blocks, layout.num_teacher_rows)
    features = made_up_features(context, layout)
    try:
        batch = BlockBatch.assemble(layout, features, settings.weights_B, shapes, context.device)
        hidden_ND = step.drafter(batch.features_TF, batch.anchor_embeddings_AD, step.mask_embedding_D, batch.geometry)
        loss = dense_head_loss(
            hidden_ND,
            batch.teacher_hidden_UD.to(hidden_ND.dtype),
            batch.teacher_index_N,
            batch.labels_N,
            batch.weights_N,
            drafter_weight_VD=step.heads.drafter.rows_vD,
            teacher_weight_VD=step.heads.teacher.rows_vD,
            objective=settings.objective,
            block_size=layout.block_size,
        )
        loss.loss_sum.backward()
    except torch.OutOfMemoryError as error:
        return str(error).split("\n")[0]
    return None
