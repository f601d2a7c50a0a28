"""Placement arithmetic: who is what, who shares a head, which pack goes where."""

from __future__ import annotations

from collections import Counter

import pytest

from tp_dflash.config.placement import PlacementConfig
from tp_dflash.placement import Placement, PlacementError, parse_gpus


def _place(world_size: int, local: int | None = None, **settings: object) -> Placement:
    return Placement.resolve(PlacementConfig(**settings), world_size, local or world_size)


def test_drafter_state_is_spread_over_all_nodes_or_copied_on_each() -> None:
    settings = {"target": "0", "drafter": "1,2"}
    spread = _place(6, 3, **settings)
    assert spread.shard_groups == ((1, 2, 4, 5),)
    copied = _place(6, 3, **settings, drafter_shards="node")
    assert copied.shard_groups == ((1, 2), (4, 5))
    assert copied.replica_groups == ((1, 4), (2, 5))
    assert _place(3, **settings, drafter_shards="node").shard_groups == ((1, 2),)


def test_target_ranks_in_a_row_hold_one_target_and_the_first_sends() -> None:
    placement = _place(12, 6, target="0-3", drafter="4,5", target_tensor_parallel=2)
    assert placement.target_groups == ((0, 1), (2, 3), (6, 7), (8, 9))
    assert placement.targets == (0, 2, 6, 8)
    assert placement.target_group_of(9) == (8, 9)
    assert {target for target, _ in placement.stream_pairs} == {0, 2, 6, 8}
    work = Counter(placement.target_of(pack) for pack in range(400))
    assert set(work.values()) == {100}
    with pytest.raises(ValueError, match="rank 4"):
        placement.target_group_of(4)


def test_gpus_become_local_ranks_in_ascending_order() -> None:
    placement = _place(7, target="0-4", drafter="6,7", tensor_parallel=2)
    assert placement.targets == (0, 1, 2, 3, 4)
    assert placement.drafters == (5, 6)
    assert [place.gpu for place in placement.places] == [0, 1, 2, 3, 4, 6, 7]
    assert [(group.ranks, group.drafters) for group in placement.head_groups] == [((5, 6), (5, 6))]


def test_a_head_only_rank_joins_the_group_without_being_a_drafter() -> None:
    placement = _place(8, target="0-4", drafter="6,7", head="5-7", tensor_parallel=2)
    assert placement.drafters == (6, 7)
    assert placement.head_groups[0].ranks == (5, 6, 7)
    assert placement.places[5].role == "head-only"
    assert placement.head_group_of(5).drafters == (6, 7)


def test_a_world_of_one_is_colocated() -> None:
    placement = _place(1)
    assert placement.colocated
    assert placement.targets == placement.drafters == (0,)
    assert placement.stream_pairs == ()
    assert [placement.target_of(pack) for pack in range(3)] == [0, 0, 0]


def test_groups_beyond_tensor_parallel_are_data_parallel() -> None:
    placement = _place(8, target="0-3", drafter="4-7", tensor_parallel=2)
    assert [group.ranks for group in placement.head_groups] == [(4, 5), (6, 7)]


@pytest.mark.parametrize(("num_targets", "num_drafters"), [(1, 1), (5, 2), (2, 3), (3, 2), (4, 2), (1, 4)])
def test_packs_go_round_on_one_node(num_targets: int, num_drafters: int) -> None:
    placement = _place(
        num_targets + num_drafters,
        target=f"0-{num_targets - 1}",
        drafter=f"{num_targets}-{num_targets + num_drafters - 1}",
    )
    for pack in range(60):
        assert placement.target_of(pack) == placement.targets[pack % num_targets]
        assert placement.drafter_of(pack) == placement.drafters[pack % num_drafters]
        assert (placement.target_of(pack), placement.drafter_of(pack)) in placement.stream_pairs
    used = {(placement.target_of(pack), placement.drafter_of(pack)) for pack in range(60)}
    assert used == set(placement.stream_pairs)


def test_features_stay_on_their_node_and_targets_share_the_work() -> None:
    placement = _place(14, 7, target="0-4", drafter="6,7", tensor_parallel=2)
    assert [group.ranks for group in placement.head_groups] == [(5, 6), (12, 13)]
    for target, drafter in placement.stream_pairs:
        assert placement.places[target].node == placement.places[drafter].node
    work = Counter(placement.target_of(pack) for pack in range(400))
    assert set(work.values()) == {40}


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({"target": "0-4", "drafter": "6,7"}, 8, r"expected 7 ranks a node .* --nproc-per-node 7"),
        ({"target": "0-4", "drafter": "4,5"}, 6, r"got 4 in both"),
        ({"target": "0", "drafter": "1-3", "tensor_parallel": 2}, 4, r"divisor of 3 drafter GPUs"),
        ({"target": "0", "drafter": "1-4", "head": "1-5", "tensor_parallel": 2}, 6, r"1 head-only GPUs evenly"),
        ({"target": "0-4", "drafter": "5", "target_tensor_parallel": 2}, 6, r"divisor of 5 target GPUs, got 2"),
        ({"drafter": "0,1", "target_tensor_parallel": 2}, 2, r"expected 1 where every drafter rank hosts the target"),
        ({"target": "zero", "drafter": "1"}, 2, r'placement.target: expected GPU numbers such as "0-4"'),
        ({"target": "0", "drafter": "1,1"}, 2, r"expected each GPU once"),
        ({"target": "3-1", "drafter": "0"}, 2, r"correct the part '3-1'"),
    ],
)
def test_a_placement_that_cannot_be_is_answered_with_the_remedy(settings: dict, world: int, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        _place(world, **settings)


def test_gpu_lists() -> None:
    assert parse_gpus("key", "0-2, 5") == {0, 1, 2, 5}
