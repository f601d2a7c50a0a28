"""Every pack reaches its drafter rank in order and bit for bit; targets run ahead as far as they may and no further."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tests.streams.pools import CPU, EMPTY_PACKS, SHAPES, compute, layout_of, open_pairs, place, tensors
from tp_dflash.blocks import BlockLayout, FeatureBatch
from tp_dflash.streams import FeatureReceiver, FeatureSender, LocalFeatures, StreamMeters, bottleneck

NUM_PACKS = 12
LIMIT = 20.0


def _stream(
    rank: int, num_targets: int, num_drafters: int, ahead: int, dtype: torch.dtype
) -> tuple[list, StreamMeters]:
    """Two epochs through the pool; a drafter returns (pack id, tensors) in the order in which it received them."""
    placement = place(num_targets, num_drafters)
    groups = open_pairs(placement, rank)
    shapes = dataclasses.replace(SHAPES, dtype=dtype)
    layouts = [layout_of(pack_id, epoch) for epoch in range(2) for pack_id in range(NUM_PACKS)]
    received: list[tuple[int, list[torch.Tensor]]] = []
    if rank in placement.targets:
        mine = {drafter: group for (_, drafter), group in groups.items()}
        with FeatureSender(compute, mine, placement.drafter_of, shapes, CPU, LIMIT) as sender:
            for layout in layouts:
                if placement.target_of(layout.pack.pack_id) == rank:
                    sender.send(layout)
            sender.finish()
            return received, sender.meters()
    mine = {target: group for (target, _), group in groups.items()}
    with FeatureReceiver(mine, placement.target_of, shapes, CPU, LIMIT) as receiver:
        wanted = [layout for layout in layouts if placement.drafter_of(layout.pack.pack_id) == rank]
        for index, layout in enumerate(wanted):
            for expected in wanted[index + ahead if index else 0 : index + ahead + 1]:
                receiver.expect(expected)
            batch = receiver.receive(layout)
            received.append((batch.pack_id, tensors(batch)))
        receiver.finish()
        return received, receiver.meters()


@pytest.mark.parametrize(
    ("num_targets", "num_drafters", "ahead", "dtype"),
    [
        (1, 1, 1, torch.float32),
        (3, 2, 1, torch.float32),
        (2, 3, 0, torch.float32),
        (2, 1, 5, torch.bfloat16),
    ],
)
def test_packs_arrive_in_order_and_bit_equal_to_local_features(
    num_targets: int, num_drafters: int, ahead: int, dtype: torch.dtype
) -> None:
    results = run_ranks(_stream, num_targets + num_drafters, num_targets, num_drafters, ahead, dtype)
    local = LocalFeatures(compute, dataclasses.replace(SHAPES, dtype=dtype), CPU)
    for drafter, (received, meters) in enumerate(results[num_targets:]):
        expected_ids = [pack_id for _ in range(2) for pack_id in range(drafter, NUM_PACKS, num_drafters)]
        assert [pack_id for pack_id, _ in received] == expected_ids
        num_bytes = 0
        for index, (pack_id, parts) in enumerate(received):
            layout = layout_of(pack_id, index * 2 // len(received))
            local.expect(layout)
            expected = tensors(local.receive(layout))
            assert parts[0].shape[0] == layout.pack.num_tokens
            for part, wanted in zip(parts, expected, strict=True):
                assert part.dtype == wanted.dtype
                assert torch.equal(part, wanted)
            num_bytes += sum(part.numel() * part.itemsize for part in parts)
        empty = sum(pack_id in EMPTY_PACKS for pack_id in expected_ids)
        assert (meters.packs, meters.empty_packs, meters.bytes) == (len(expected_ids) - empty, empty, num_bytes)
    sent = [meters for _, meters in results[:num_targets]]
    assert sum(meters.packs for meters in sent) == 2 * (NUM_PACKS - len(EMPTY_PACKS))
    assert sum(meters.empty_packs for meters in sent) == 2 * len(EMPTY_PACKS)


def _run_ahead(rank: int) -> list[tuple[str, int, float]]:
    """The target notes when it computes a pack; the drafter takes its packs slowly. The clock is one for all ranks."""
    placement, notes = place(1, 1), list[tuple[str, int, float]]()
    groups = open_pairs(placement, rank)
    layouts = [layout_of(pack_id) for pack_id in (0, 1, 3, 4, 5, 6)]

    def noted(layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
        notes.append(("computed", layout.pack.pack_id, time.monotonic()))
        return compute(layout, out)

    if rank == 0:
        with FeatureSender(noted, {1: groups[0, 1]}, placement.drafter_of, SHAPES, CPU, LIMIT) as sender:
            for layout in layouts:
                sender.send(layout)
            sender.finish()
            notes.append(("waited", 0, sender.meters().target_waited))
        return notes
    with FeatureReceiver({0: groups[0, 1]}, placement.target_of, SHAPES, CPU, LIMIT) as receiver:
        for layout in layouts:
            receiver.expect(layout)
        for layout in layouts:
            time.sleep(0.3)
            notes.append(("takes", layout.pack.pack_id, time.monotonic()))
            receiver.receive(layout)
        receiver.finish()
        notes.append(("waited", 0, receiver.meters().drafter_waited))
        notes.append(("target waited", 0, receiver.meters().target_waited))
    return notes


def test_targets_run_two_packs_ahead_and_are_held_back() -> None:
    target, drafter = run_ranks(_run_ahead, 2)
    computed = [moment for what, _, moment in target if what == "computed"]
    takes = [moment for what, _, moment in drafter if what == "takes"]
    assert computed[1] < takes[0], "the second pack must be computed before the first is taken"
    for index in range(2, len(computed)):
        assert computed[index] > takes[index - 2], "a third pack in flight"
        assert computed[index] < takes[index - 1], "held back longer than needed"
    waited = target[-1][2]
    assert waited > 0.8, "four packs of 0.3 s each were waited for"
    assert drafter[-2][2] < waited / 2
    assert 0.5 < drafter[-1][2] <= waited, "the drafter knows from the headers how long the target waited"


def _stop_early(rank: int) -> list[int]:
    """Both sides end at the same pack, while the drafter has announced more; then the ranks still meet."""
    placement, taken = place(1, 1), list[int]()
    groups = open_pairs(placement, rank)
    layouts = [layout_of(pack_id) for pack_id in (0, 1, 3, 4, 5, 6)]
    if rank == 0:
        with FeatureSender(compute, {1: groups[0, 1]}, placement.drafter_of, SHAPES, CPU, LIMIT) as sender:
            for layout in layouts[:3]:
                sender.send(layout)
            sender.finish()
    else:
        with FeatureReceiver({0: groups[0, 1]}, placement.target_of, SHAPES, CPU, LIMIT) as receiver:
            for layout in layouts:
                receiver.expect(layout)
            taken = [receiver.receive(layout).pack_id for layout in layouts[:3]]
            receiver.finish()
    dist.barrier()
    return taken


def test_a_run_may_end_before_what_was_announced() -> None:
    assert run_ranks(_stop_early, 2)[1] == [0, 1, 3]


def _slow_target(rank: int) -> StreamMeters:
    placement = place(1, 1)
    groups = open_pairs(placement, rank)
    layouts = [layout_of(pack_id) for pack_id in range(6)]

    def slow(layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
        time.sleep(0.1)
        return compute(layout, out)

    if rank == 0:
        with FeatureSender(slow, {1: groups[0, 1]}, placement.drafter_of, SHAPES, CPU, LIMIT) as sender:
            for layout in layouts:
                sender.send(layout)
            sender.finish()
            return sender.meters()
    with FeatureReceiver({0: groups[0, 1]}, placement.target_of, SHAPES, CPU, LIMIT) as receiver:
        for layout in layouts:
            receiver.expect(layout)
        for layout in layouts:
            receiver.receive(layout)
        receiver.finish()
        return receiver.meters()


def test_the_bottleneck_is_named() -> None:
    target, drafter = run_ranks(_slow_target, 2)
    assert drafter.drafter_share > 0.7
    assert target.target_share < 0.2
    assert bottleneck(drafter, 1).startswith("the targets are the bottleneck: drafters wait")


def test_the_sentence_follows_the_shares() -> None:
    base = StreamMeters(packs=10, empty_packs=0, bytes=1000, elapsed=10.0, target_waited=0.1, drafter_waited=0.1)
    assert bottleneck(base, 2) == "balanced: drafters wait 1% of the time, targets 1%, 0.0 MB/s"
    targets = bottleneck(dataclasses.replace(base, drafter_waited=5.0), 2)
    assert "2 targets do the work of 4.0 that would keep up" in targets
    drafters = bottleneck(dataclasses.replace(base, target_waited=5.0), 4)
    assert "the drafters are the bottleneck" in drafters
    assert "2.0 of 4 targets would keep up" in drafters
    later = dataclasses.replace(base, packs=15, bytes=1600, elapsed=12.0, drafter_waited=1.1)
    assert later.since(base) == StreamMeters(5, 0, 600, 2.0, 0.0, 1.0)
    assert later.since(base).bytes_per_second == 300
