"""Small pools of target and drafter ranks on gloo: routes, groups, layouts, and features that are easy to predict."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, FeatureBatch, FixedShapes, Pack
from tp_dflash.config.placement import PlacementConfig
from tp_dflash.placement import Placement
from tp_dflash.streams import PayloadShapes

CPU = torch.device("cpu")
SHAPES = PayloadShapes(FixedShapes(num_context=40, num_blocks=6, num_teacher_rows=18), 6, 3, torch.float32)
EMPTY_PACKS = frozenset({2, 7})


def place(num_targets: int, num_drafters: int) -> Placement:
    last = num_targets + num_drafters - 1
    config = PlacementConfig(
        target=f"0-{num_targets - 1}", drafter=f"{num_targets}-{last}", tensor_parallel=num_drafters
    )
    return Placement.resolve(config, last + 1, last + 1)


def open_pairs(placement: Placement, rank: int) -> dict[tuple[int, int], ProcessGroup]:
    """Every pair's group, opened by all ranks in one order; only this rank's."""
    groups = {pair: dist.new_group(list(pair)) for pair in placement.stream_pairs}
    return {pair: group for pair, group in groups.items() if rank in pair}


def layout_of(pack_id: int, epoch: int = 0, salt: int = 0) -> BlockLayout:
    """Packs of one to three documents, of which two packs are empty."""
    generator = torch.Generator().manual_seed(1000 * epoch + 10 * pack_id + salt)
    lengths = torch.randint(2, 13, (1 + pack_id % 3,), generator=generator).tolist()
    documents = tuple(
        Document(
            100 * pack_id + index,
            torch.randint(0, 50, (length,), generator=generator),
            torch.ones(length, dtype=torch.bool),
        )
        for index, length in enumerate(lengths if pack_id not in EMPTY_PACKS else [])
    )
    return BlockLayout.build(Pack(pack_id, epoch, documents), AnchorCaps(per_pack=6), seed=5, block_size=4)


def compute(layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
    """Features that follow from the tokens; a document whose first token is a multiple of 5 counts as not finite."""
    tokens_T1 = layout.pack.tokens_T[:, None].double()
    out.features_TF.copy_(torch.sin(tokens_T1 * torch.arange(1, 7)))
    out.teacher_hidden_UD.copy_(torch.cos(tokens_T1[layout.teacher_row_U] * torch.arange(1, 4)))
    out.anchor_embeddings_AD.copy_(tokens_T1[layout.anchor_A] / torch.arange(1, 4))
    assert out.finite_documents is not None
    firsts = torch.stack([document.tokens_S[0] for document in layout.pack.documents])
    out.finite_documents.copy_(firsts % 5 != 0)
    return out


Compute = Callable[[BlockLayout, FeatureBatch], FeatureBatch]


def tensors(batch: FeatureBatch) -> list[torch.Tensor]:
    """Copies of a batch's contents: the buffers are used again."""
    assert batch.finite_documents is not None
    assert batch.padded_features_TF is not None
    num_tokens = batch.features_TF.shape[0]
    assert torch.equal(batch.padded_features_TF[:num_tokens], batch.features_TF)
    assert (batch.padded_features_TF[num_tokens:] == 0).all(), "rows of an earlier pack are still there"
    return [
        part.clone()
        for part in (batch.features_TF, batch.teacher_hidden_UD, batch.anchor_embeddings_AD, batch.finite_documents)
    ]
