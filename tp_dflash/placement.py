"""Which rank is what, as plain arithmetic: no tensors, no process groups, no environment.

In: the placement section, the world's size and the ranks of one node. Out: the roles of every rank, the head groups, and
for every pack the target rank that computes it and the drafter rank that trains on it. All ranks derive the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tp_dflash.config.placement import PlacementConfig


class PlacementError(ValueError):
    """The placement does not fit the world that was started; the message says which command does."""


@dataclass(frozen=True)
class RankPlace:
    """One rank: where it runs and what it does. gpu: local GPU number, equal on every node."""

    rank: int
    node: int
    gpu: int
    is_target: bool
    is_drafter: bool
    is_head: bool

    @property
    def role(self) -> str:
        """The rank's work in words, for logs and errors."""
        if self.is_drafter:
            return "target + drafter" if self.is_target else "drafter"
        return "target" if self.is_target else "head-only"


@dataclass(frozen=True)
class HeadGroup:
    """Ranks that share one copy of the lm_heads, ascending; ``drafters`` of them bring rows."""

    ranks: tuple[int, ...]
    drafters: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Every rank's place. Build it with ``Placement.resolve``.

    target_groups: ranks that hold one target together, ascending, a group a target; the first computes and sends, the others
    follow. copies_by_node: every node holds a whole copy of the drafter's state, in shards over its own drafter ranks.
    """

    places: tuple[RankPlace, ...]
    head_groups: tuple[HeadGroup, ...]
    target_groups: tuple[tuple[int, ...], ...]
    num_nodes: int
    copies_by_node: bool

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """The rank of every target that computes packs: the first of its group."""
        return tuple(group[0] for group in self.target_groups)

    @cached_property
    def drafters(self) -> tuple[int, ...]:
        return tuple(place.rank for place in self.places if place.is_drafter)

    @cached_property
    def shard_groups(self) -> tuple[tuple[int, ...], ...]:
        """Drafter ranks whose shards make up one copy of the drafter's state, a group a copy."""
        copies = self.num_nodes if self.copies_by_node else 1
        size = len(self.drafters) // copies
        return tuple(self.drafters[copy * size : (copy + 1) * size] for copy in range(copies))

    @cached_property
    def replica_groups(self) -> tuple[tuple[int, ...], ...]:
        """Drafter ranks that hold the same shard, a group a shard."""
        return tuple(zip(*self.shard_groups, strict=True))

    @property
    def colocated(self) -> bool:
        return any(place.is_target and place.is_drafter for place in self.places)

    def head_group_of(self, rank: int) -> HeadGroup:
        """The head group that ``rank`` belongs to; ValueError if it owns no shard."""
        for group in self.head_groups:
            if rank in group.ranks:
                return group
        raise ValueError(f"expected a rank with a head shard, got rank {rank} ({self.places[rank].role})")

    def target_group_of(self, rank: int) -> tuple[int, ...]:
        """The target group that ``rank`` belongs to; ValueError if it holds no target."""
        for group in self.target_groups:
            if rank in group:
                return group
        raise ValueError(f"expected a rank with a target, got rank {rank} ({self.places[rank].role})")

    def drafter_of(self, pack_id: int) -> int:
        """Drafter rank that trains on a pack: pack i belongs to drafter i mod (number of drafters)."""
        return self.drafters[pack_id % len(self.drafters)]

    def target_of(self, pack_id: int) -> int:
        """Target rank that computes a pack (the first of its group), on the drafter's own node so that features stay inside it.

        The packs of a node, in order, go round its targets: on one node, pack i belongs to target i mod (number of targets).
        """
        if self.colocated:
            return self.drafter_of(pack_id)
        per_node_drafters = len(self.drafters) // self.num_nodes
        per_node_targets = len(self.targets) // self.num_nodes
        lap, index = divmod(pack_id, len(self.drafters))
        node, local = divmod(index, per_node_drafters)
        return self.targets[node * per_node_targets + (lap * per_node_drafters + local) % per_node_targets]

    @cached_property
    def stream_pairs(self) -> tuple[tuple[int, int], ...]:
        """All (target, drafter) pairs that exchange packs, in the one order in which their groups are opened."""
        if self.colocated:
            return ()
        laps = len(self.targets) // self.num_nodes
        routes = {(self.target_of(pack), self.drafter_of(pack)) for pack in range(laps * len(self.drafters))}
        return tuple(sorted(routes))

    @staticmethod
    def resolve(config: PlacementConfig, world_size: int, local_world_size: int) -> Placement:
        """Map GPU numbers to ranks: a node's GPUs in ascending order are its local ranks, and nodes repeat each other.

        Raises PlacementError with the right torchrun command when the world does not have the size that the section asks for.
        """
        targets, drafters, heads = _parse_roles(config)
        gpus = sorted(targets | drafters | heads)
        if local_world_size != len(gpus) or world_size % local_world_size:
            raise PlacementError(
                f"placement: expected {len(gpus)} ranks a node (GPUs {_listed(gpus)}), got {local_world_size} of a world "
                f"of {world_size}; start with: torchrun --nproc-per-node {len(gpus)} -m tp_dflash train CONFIG"
            )
        num_nodes = world_size // local_world_size
        places = tuple(
            RankPlace(node * len(gpus) + local, node, gpu, gpu in targets, gpu in drafters, gpu in heads)
            for node in range(num_nodes)
            for local, gpu in enumerate(gpus)
        )
        groups = [group for node in range(num_nodes) for group in _head_groups(places, node, config.tensor_parallel)]
        return Placement(
            places,
            head_groups=tuple(groups),
            target_groups=_target_groups(places, config.target_tensor_parallel),
            num_nodes=num_nodes,
            copies_by_node=config.drafter_shards == "node",
        )


def _parse_roles(config: PlacementConfig) -> tuple[set[int], set[int], set[int]]:
    drafters = parse_gpus("placement.drafter", config.drafter)
    targets = drafters if config.target == "colocated" else parse_gpus("placement.target", config.target)
    heads = drafters | (parse_gpus("placement.head", config.head) if config.head is not None else set())
    if config.target != "colocated" and targets & heads:
        raise PlacementError(
            f"placement: expected target GPUs apart from drafter and head GPUs, got {_listed(sorted(targets & heads))} in both; "
            'move them or set placement.target = "colocated"'
        )
    _check_target_groups(config, len(targets))
    groups, rest = divmod(len(drafters), config.tensor_parallel)
    if rest or len(heads - drafters) % groups:
        raise PlacementError(
            f"placement.tensor_parallel: expected a divisor of {len(drafters)} drafter GPUs that also shares out "
            f"{len(heads - drafters)} head-only GPUs evenly, got {config.tensor_parallel}; change one of them"
        )
    return targets, drafters, heads


def _check_target_groups(config: PlacementConfig, num_targets: int) -> None:
    together = config.target_tensor_parallel
    if config.target == "colocated" and together > 1:
        raise PlacementError(
            f"placement.target_tensor_parallel: expected 1 where every drafter rank hosts the target, got {together}; give the "
            "target GPUs of its own in placement.target"
        )
    if num_targets % together:
        raise PlacementError(
            f"placement.target_tensor_parallel: expected a divisor of {num_targets} target GPUs, got {together}; change one of "
            "them"
        )


def _target_groups(places: tuple[RankPlace, ...], together: int) -> tuple[tuple[int, ...], ...]:
    """So many target ranks in a row; a node has a multiple of them, so that none spans two nodes."""
    ranks = [place.rank for place in places if place.is_target]
    return tuple(tuple(ranks[first : first + together]) for first in range(0, len(ranks), together))


def _head_groups(places: tuple[RankPlace, ...], node: int, tensor_parallel: int) -> list[HeadGroup]:
    drafters = [place.rank for place in places if place.node == node and place.is_drafter]
    head_only = [place.rank for place in places if place.node == node and place.is_head and not place.is_drafter]
    num_groups = len(drafters) // tensor_parallel
    share = len(head_only) // num_groups
    groups = []
    for index in range(num_groups):
        members = drafters[index * tensor_parallel : (index + 1) * tensor_parallel]
        helpers = head_only[index * share : (index + 1) * share]
        groups.append(HeadGroup(tuple(sorted(members + helpers)), tuple(members)))
    return groups


def parse_gpus(key: str, text: str) -> set[int]:
    """GPU numbers of ``"0-4"``, ``"6,7"`` or ``"0-2,5"``; PlacementError names ``key`` on anything else."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise PlacementError(
                f'{key}: expected GPU numbers such as "0-4" or "6,7", got {text!r}; correct the part {part.strip()!r}'
            )
        numbers.extend(range(int(first), int(last or first) + 1))
    if len(set(numbers)) != len(numbers):
        raise PlacementError(f"{key}: expected each GPU once, got {text!r}; remove the repeated number")
    return set(numbers)


def _listed(gpus: list[int]) -> str:
    return ", ".join(str(gpu) for gpu in gpus)
