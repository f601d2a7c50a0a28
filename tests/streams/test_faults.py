"""Disagreement, failure, death and silence of one side end both sides with an error that says who, which pack and why."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tests.streams.pools import CPU, SHAPES, compute, layout_of, open_pairs, place
from tp_dflash.blocks import AnchorCaps, BlockLayout, FeatureBatch
from tp_dflash.streams import (
    DrafterFailed,
    FeatureReceiver,
    FeatureSender,
    LocalFeatures,
    PayloadShapes,
    PeerLost,
    StreamError,
    TargetFailed,
)
from tp_dflash.streams.message import Message, State


@contextmanager
def _told(errors: list[str]) -> Iterator[None]:
    """Collect what a rank raises, so that both ranks' words can be compared."""
    try:
        yield
    except StreamError as error:
        errors.append(f"{type(error).__name__}: {error}")
    except ArithmeticError as error:
        errors.append(f"{type(error).__name__}: {error}")


def _serve(rank: int, layouts: list[BlockLayout], work: Callable = compute, limit: float = 10.0) -> list[str]:
    """Rank 0 sends, rank 1 receives, each its own view of the plan; returns the errors."""
    placement, errors = place(1, 1), list[str]()
    groups = open_pairs(placement, rank)
    with _told(errors):
        if rank == 0:
            with FeatureSender(work, {1: groups[0, 1]}, placement.drafter_of, SHAPES, CPU, limit) as sender:
                for layout in layouts:
                    sender.send(layout)
                sender.finish()
        else:
            with FeatureReceiver({0: groups[0, 1]}, placement.target_of, SHAPES, CPU, limit) as receiver:
                for layout in layouts:
                    receiver.expect(layout)
                for layout in layouts:
                    receiver.receive(layout)
                receiver.finish()
    return errors


def _another_plan(rank: int, kind: str) -> list[str]:
    layouts = [layout_of(pack_id) for pack_id in (0, 1, 3)]
    if rank == 0:
        pack = layouts[1].pack
        if kind == "order":
            layouts[1], layouts[2] = layouts[2], layouts[1]
        elif kind == "epoch":
            layouts[1] = layout_of(1, epoch=1)
        elif kind == "content":
            document = pack.documents[0]
            changed = dataclasses.replace(document, tokens_S=document.tokens_S + 1)
            other = dataclasses.replace(pack, documents=(changed, *pack.documents[1:]))
            layouts[1] = BlockLayout.build(other, AnchorCaps(per_pack=6), seed=5, block_size=4)
        elif kind == "seed":
            layouts[1] = BlockLayout.build(pack, AnchorCaps(per_pack=6), seed=6, block_size=4)
        elif kind == "caps":
            layouts[1] = BlockLayout.build(pack, AnchorCaps(per_pack=2), seed=5, block_size=4)
        elif kind == "longer":
            layouts[1] = layout_of(5)
            layouts[1] = dataclasses.replace(layouts[1], pack=dataclasses.replace(layouts[1].pack, pack_id=1))
        elif kind == "emptied":
            layouts[1] = BlockLayout.build(dataclasses.replace(pack, documents=()), AnchorCaps(6), 5, 4)
    return _serve(rank, layouts)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("order", "pack_id 1 (got 3)"),
        ("epoch", "epoch 0 (got 1)"),
        ("content", "layout_key"),
        ("seed", "layout_key"),
        ("caps", "num_anchors"),
        ("longer", "num_tokens"),
        ("emptied", "state 1 (got 2)"),
    ],
)
def test_a_pack_that_is_not_the_expected_one_is_an_error_on_both_sides(kind: str, field: str) -> None:
    (target,), (drafter,) = run_ranks(_another_plan, 2, kind)
    assert drafter.startswith("StreamError: drafter rank 1: expected pack 1 of epoch 0 from target rank 0, got pack ")
    assert field.split(" (")[0] in drafter
    assert "same prepared data, seed, anchor caps and plan" in drafter
    assert target.startswith("DrafterFailed: target rank 0: drafter rank 1 answered pack ")
    assert "REFUSED" in target
    assert "expected pack 1 of epoch 0 from target rank 0" in target


def _failing_work(layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
    if layout.pack.pack_id == 3:
        raise ZeroDivisionError("the target is unwell")
    return compute(layout, out)


def _failing_target(rank: int) -> list[str]:
    return _serve(rank, [layout_of(pack_id) for pack_id in (0, 1, 3, 4)], _failing_work)


def test_a_failing_target_sends_its_traceback() -> None:
    began = time.monotonic()
    (target,), (drafter,) = run_ranks(_failing_target, 2)
    assert target == "ZeroDivisionError: the target is unwell"
    assert drafter.startswith("TargetFailed: drafter rank 1: target rank 0 failed before pack 3 of epoch 0")
    assert "in _failing_work" in drafter
    assert "ZeroDivisionError: the target is unwell" in drafter
    assert time.monotonic() - began < 20


def _one_of_three_targets_fails(rank: int) -> list[str]:
    """Pack 3 is target 0's; drafters 3 and 4 and the other targets must all end."""
    placement, errors = place(3, 2), list[str]()
    groups = open_pairs(placement, rank)
    layouts = [layout_of(pack_id) for pack_id in range(12)]
    with _told(errors):
        if rank < 3:
            mine = {drafter: group for (_, drafter), group in groups.items()}
            with FeatureSender(_failing_work, mine, placement.drafter_of, SHAPES, CPU, 15.0) as sender:
                for layout in layouts:
                    if placement.target_of(layout.pack.pack_id) == rank:
                        sender.send(layout)
                sender.finish()
        else:
            mine = {target: group for (target, _), group in groups.items()}
            with FeatureReceiver(mine, placement.target_of, SHAPES, CPU, 15.0) as receiver:
                for layout in layouts:
                    if placement.drafter_of(layout.pack.pack_id) == rank:
                        receiver.expect(layout)
                        receiver.receive(layout)
                receiver.finish()
    return errors


def test_one_failing_target_ends_the_whole_pool() -> None:
    results = run_ranks(_one_of_three_targets_fails, 5)
    assert results[0] == ["ZeroDivisionError: the target is unwell"]
    for drafter in results[3:]:
        assert drafter[0].startswith("TargetFailed")
    for target in results[1:3]:
        assert target[0].startswith(("DrafterFailed", "PeerLost"))


def _failing_drafter(rank: int) -> list[str]:
    placement, errors = place(1, 1), list[str]()
    groups = open_pairs(placement, rank)
    if rank == 0:
        return _serve_target_only(groups[0, 1])
    with _told(errors), FeatureReceiver({0: groups[0, 1]}, placement.target_of, SHAPES, CPU, 10.0) as receiver:
        first = layout_of(0)
        receiver.expect(first)
        receiver.receive(first)
        raise ZeroDivisionError("the drafter is unwell")
    return errors


def _serve_target_only(group: dist.ProcessGroup) -> list[str]:
    errors: list[str] = []
    with _told(errors), FeatureSender(compute, {1: group}, lambda pack_id: 1, SHAPES, CPU, 10.0) as sender:
        for pack_id in (0, 1, 3, 4):
            sender.send(layout_of(pack_id))
        sender.finish()
    return errors


def test_a_failing_drafter_tells_its_targets() -> None:
    (target,), (drafter,) = run_ranks(_failing_drafter, 2)
    assert drafter == "ZeroDivisionError: the drafter is unwell"
    assert target.startswith("DrafterFailed: target rank 0: drafter rank 1 answered pack 1 of epoch 0 with FAILED")
    assert "ZeroDivisionError: the drafter is unwell" in target


def _silent_peer(rank: int, silent: int) -> list[str]:
    if rank == silent:
        groups = open_pairs(place(1, 1), rank)
        options = (SHAPES, CPU, 5.0)
        if rank == 0:
            FeatureSender(compute, {1: groups[0, 1]}, lambda pack_id: 1, *options)
        else:
            FeatureReceiver({0: groups[0, 1]}, lambda pack_id: 0, *options)
        time.sleep(3)
        return []
    return _serve(rank, [layout_of(pack_id) for pack_id in (0, 1, 3)], limit=1.0)


@pytest.mark.parametrize(
    ("silent", "message"),
    [
        (0, "drafter rank 1 waited more than 1 s for target rank 0 (the header of pack 0 of epoch 0)"),
        (1, "target rank 0 waited more than 1 s for drafter rank 1 (the receipt of pack 0 of epoch 0)"),
    ],
)
def test_every_wait_has_a_limit(silent: int, message: str) -> None:
    results = run_ranks(_silent_peer, 2, silent)
    assert results[1 - silent][0].startswith(f"StreamError: {message}")


def _killed_main(rank: int, killed: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    layouts = [layout_of(pack_id) for pack_id in (0, 1, 3, 4)]

    def work(layout: BlockLayout, out: FeatureBatch) -> FeatureBatch:
        if layout.pack.pack_id == 3 and rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(layout, out)

    began = time.monotonic()
    if rank == 1 == killed:
        groups = open_pairs(place(1, 1), rank)
        receiver = FeatureReceiver({0: groups[0, 1]}, lambda pack_id: 0, SHAPES, CPU, 30.0)
        receiver.expect(layouts[0])
        receiver.receive(layouts[0])
        os.kill(os.getpid(), signal.SIGKILL)
    errors = _serve(rank, layouts, work, limit=30.0)
    (Path(folder) / "errors").write_text("\n".join([f"{time.monotonic() - began:.1f}", *errors]))


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_others_wait(killed: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=_killed_main, args=(rank, killed, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(40)
        assert process.exitcode is not None, "a rank still waits"
    assert ranks[killed].exitcode == -signal.SIGKILL
    seconds, error = (tmp_path / "errors").read_text().split("\n", 1)
    assert float(seconds) < 15
    roles = ("target rank 0", "drafter rank 1")
    assert error.startswith(f"PeerLost: {roles[1 - killed]} lost {roles[killed]} while it waited for the ")
    assert "of epoch 0" in error


def _unequal_contract(rank: int) -> list[str]:
    groups, errors = open_pairs(place(1, 1), rank), list[str]()
    with _told(errors):
        if rank == 0:
            FeatureSender(compute, {1: groups[0, 1]}, lambda pack_id: 1, SHAPES, CPU, 5.0)
        else:
            other: PayloadShapes = dataclasses.replace(SHAPES, feature_size=9, dtype=torch.bfloat16)
            FeatureReceiver({0: groups[0, 1]}, lambda pack_id: 0, other, CPU, 5.0)
    return errors


def test_unequal_buffers_are_an_error_at_the_start() -> None:
    (target,), (drafter,) = run_ranks(_unequal_contract, 2)
    assert "target rank 0 and drafter rank 1 differ in feature width 6 here, 9 there; bytes a value 4 here, 2" in target
    assert "feature width 9 here, 6 there" in drafter


def test_packs_must_be_announced_in_order() -> None:
    local = LocalFeatures(compute, SHAPES, CPU)
    first, second = layout_of(0), layout_of(1)
    local.expect(first)
    with pytest.raises(StreamError, match=r"expected pack 1 to be announced next, got pack 0"):
        local.receive(second)
    local.receive(first)
    with pytest.raises(StreamError, match=r"got nothing"):
        local.receive(second)


def test_a_pack_beyond_the_buffers_names_the_setting() -> None:
    local = LocalFeatures(compute, dataclasses.replace(SHAPES, feature_size=6), CPU)
    pack = layout_of(5).pack
    large = BlockLayout.build(dataclasses.replace(pack, documents=pack.documents * 3), AnchorCaps(6), 5, 4)
    local.expect(large)
    with pytest.raises(ValueError, match=r"expected at most 40 tokens in a pack, got \d+; raise data\.token_budget"):
        local.receive(large)


def test_messages_keep_the_end_of_a_long_text_and_refuse_foreign_bytes() -> None:
    message = Message(State.FAILED, 3, 1, layout_key=2**32 - 1, text="x" * 20000 + "the end \N{EURO SIGN}")
    decoded = Message.decode(message.encode())
    assert decoded.text.endswith("xthe end \N{EURO SIGN}")
    assert dataclasses.replace(decoded, text="") == dataclasses.replace(message, text="")
    with pytest.raises(ValueError, match="expected a message of this version"):
        Message.decode(torch.zeros_like(message.encode()))


def test_the_errors_are_stream_errors() -> None:
    assert all(issubclass(kind, StreamError) for kind in (TargetFailed, DrafterFailed, PeerLost))
