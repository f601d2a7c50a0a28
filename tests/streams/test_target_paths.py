"""A real target's features are the same bits in the process and through streams from any number of target ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.ranks import run_ranks
from tests.streams.pools import CPU, open_pairs, place, tensors
from tests.target.models import load_target, make_layout, make_model, save_model
from tp_dflash.blocks import AnchorCaps, BlockLayout, Document, FixedShapes, Pack
from tp_dflash.config.target import TargetConfig
from tp_dflash.streams import FeatureReceiver, FeatureSender, LocalFeatures, PayloadShapes

SHAPES = PayloadShapes(FixedShapes(64, 12, 48), 3 * 16, 16, torch.float32)


def _layouts() -> list[BlockLayout]:
    """The last one: token id = position, block 4, one anchor at 10, all supervised from there."""
    mask = torch.arange(30) >= 10
    mask[12:] = False
    counting = Pack(3, 0, (Document(9, torch.arange(30), mask),))
    return [
        make_layout(20, 9, 13, pack_id=0),
        make_layout(5, 6, pack_id=1),
        make_layout(31, 2, pack_id=2),
        BlockLayout.build(counting, AnchorCaps(1), 0, 4),
    ]


def _streamed(rank: int, config: TargetConfig) -> list[list[torch.Tensor]]:
    placement = place(2, 1)
    groups = open_pairs(placement, rank)
    if rank in placement.targets:
        target = load_target(config)
        with FeatureSender(target.features, {2: groups[rank, 2]}, placement.drafter_of, SHAPES, CPU, 60.0) as sender:
            for layout in _layouts():
                if placement.target_of(layout.pack.pack_id) == rank:
                    sender.send(layout)
            sender.finish()
        return []
    received = []
    mine = {target: group for (target, _), group in groups.items()}
    with FeatureReceiver(mine, placement.target_of, SHAPES, CPU, 60.0) as receiver:
        for layout in _layouts():
            receiver.expect(layout)
            received.append(tensors(receiver.receive(layout)))
        receiver.finish()
    return received


def test_streamed_and_local_features_of_a_real_target_are_bit_equal(tmp_path: Path) -> None:
    config = save_model(make_model("qwen3"), tmp_path)
    streamed = run_ranks(_streamed, 3, config)[2]
    local = LocalFeatures(load_target(config).features, SHAPES, CPU)
    for layout, got in zip(_layouts(), streamed, strict=True):
        local.expect(layout)
        for part, expected in zip(got, tensors(local.receive(layout)), strict=True):
            assert torch.equal(part, expected)
    counting = _layouts()[-1]
    assert counting.labels_N.tolist()[1] == 11, "the label of block position 1 is the token at its own place"
    assert counting.anchor_A.tolist() == [10]
