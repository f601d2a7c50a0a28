"""All process groups of a run, opened in one global order and each used once before training starts.

Streams have groups of their own: a point-to-point message that shares a communicator with collectives is ordered after
them, and a pool that shares one with the gradient reduction can stall. The first use of a communicator is a handshake of
all its members; done lazily in the middle of a step, two ranks can wait for each other's handshake for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.placement import Placement

# A target's followers wait in a collective while its first rank waits for drafters: its error, which says so, comes first.
_SECOND_WORD = timedelta(seconds=60)


@dataclass(frozen=True, eq=False)
class Groups:
    """This rank's groups; None where it is not a member.

    everyone: gloo, all ranks, for decisions made on the host. workers: gloo, the ranks with a head shard, for the facts of
    a step. drafters: device backend, all drafter ranks. shards: device backend, those whose shards make up one copy of the
    drafter's state with this rank's (parameters, gradients); the same group as drafters where there is one copy. replicas:
    device backend, those that hold this rank's shard too; None where there is one copy. savers: gloo, all drafter ranks, for
    the thread that writes checkpoints and nothing else. head: device backend, the ranks that share this rank's copy of the
    lm_heads. target: device backend, the ranks that hold this rank's target together; None where it holds one alone.
    targets: gloo, the ranks with this rank's place in their target groups, one a target. streams: device backend, one group a
    (target, drafter) pair of this rank.
    """

    everyone: ProcessGroup
    workers: ProcessGroup | None
    drafters: ProcessGroup | None
    shards: ProcessGroup | None
    replicas: ProcessGroup | None
    savers: ProcessGroup | None
    head: ProcessGroup | None
    target: ProcessGroup | None
    targets: ProcessGroup | None
    streams: dict[tuple[int, int], ProcessGroup]


def open_groups(placement: Placement, rank: int, device: torch.device, timeout_seconds: float) -> Groups:
    """Open every group of the run; to be called by all ranks of the initialised default group at the same point."""
    timeout = timedelta(seconds=timeout_seconds)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # Streams also carry headers and receipts, which the host writes and reads.
    stream_backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    workers = tuple(place.rank for place in placement.places if place.is_head)

    def opened(ranks: tuple[int, ...], group_backend: str, patience: timedelta = timeout) -> ProcessGroup | None:
        group = dist.new_group(list(ranks), timeout=patience, backend=group_backend)
        return group if rank in ranks else None

    everyone = opened(tuple(place.rank for place in placement.places), "gloo")
    assert everyone is not None
    has_copies = len(placement.shard_groups) > 1
    drafters = opened(placement.drafters, backend)
    shards = _only([opened(ranks, backend) for ranks in placement.shard_groups]) if has_copies else drafters
    groups = Groups(
        everyone=everyone,
        workers=opened(workers, "gloo"),
        drafters=drafters,
        shards=shards,
        replicas=_only([opened(ranks, backend) for ranks in placement.replica_groups]) if has_copies else None,
        savers=opened(placement.drafters, "gloo"),
        head=_only([opened(group.ranks, backend) for group in placement.head_groups]),
        target=_only([opened(ranks, backend, timeout + _SECOND_WORD) for ranks in placement.target_groups])
        if len(placement.target_groups[0]) > 1
        else None,
        targets=_only([opened(ranks, "gloo") for ranks in zip(*placement.target_groups, strict=True)]),
        streams={pair: group for pair in placement.stream_pairs if (group := opened(pair, stream_backend)) is not None},
    )
    _use_once(groups, placement, rank, device)
    return groups


def open_rows(group: ProcessGroup, size: int, device: torch.device) -> ProcessGroup | None:
    """This rank's group of ``size`` ranks in a row of ``group``, device backend; None where size is 1. All of them must call."""
    if size == 1:
        return None
    backend = "nccl" if device.type == "cuda" else "gloo"
    ranks = dist.get_process_group_ranks(group)
    rows = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    opened = [dist.new_group(row, backend=backend) for row in rows]
    return opened[dist.get_rank(group) // size]


def _only(groups: list[ProcessGroup | None]) -> ProcessGroup | None:
    mine = [group for group in groups if group is not None]
    return mine[0] if mine else None


def _use_once(groups: Groups, placement: Placement, rank: int, device: torch.device) -> None:
    """One tiny operation on each group, all ranks in the same order, so that every communicator is open afterwards."""
    for group in (groups.drafters, groups.shards, groups.replicas, groups.head, groups.target):
        if group is not None:
            dist.all_reduce(torch.zeros(1, device=device), group=group)
    for pair in placement.stream_pairs:
        if pair not in groups.streams:
            continue
        token = torch.zeros(1, device=device)
        if rank == pair[0]:
            dist.send(token, dst=pair[1], group=groups.streams[pair])
        else:
            dist.recv(token, src=pair[0], group=groups.streams[pair])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier(group=groups.everyone)
