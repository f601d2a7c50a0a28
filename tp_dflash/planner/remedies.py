"""Changes that make a configuration smaller, in the order in which they cost least.

In: sizes and the role that is too full. Out: remedies, untried. What the first ones cost is a few percent of time; later
ones take GPUs; the last ones change what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tp_dflash.config.run import RunConfig
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.target import check_shares

_SMALLEST_CHUNK = 256
_GPUS_A_NODE = 8


@dataclass(frozen=True)
class Remedy:
    """``changes``: configuration keys and their new values. ``cost``: what is paid for it, in words."""

    name: str
    changes: dict[str, object]
    cost: str

    @property
    def settings(self) -> str:
        """As arguments of the command line."""
        return " ".join(f"--set {key}={_text(value)}" for key, value in self.changes.items())


def remedies(sizes: RunSizes, role: str) -> Iterator[Remedy]:
    """Everything that may help ranks of ``role``, cheapest first."""
    if "target" in role:
        yield from _smaller_forward(sizes.config)
    if role == "target":
        yield from _wider_targets(sizes)
    if role != "target":
        yield from _smaller_chunks(sizes)
    if "drafter" in role:
        yield from _fewer_copies(sizes)
        yield from _less_kept(sizes.config)
    if role != "target":
        yield from _more_ranks(sizes)
    yield from _smaller_packs(sizes)


def _smaller_forward(config: RunConfig) -> Iterator[Remedy]:
    tokens = config.target.tokens_per_forward
    if tokens > config.data.max_length:
        yield Remedy(
            "smaller target forwards",
            {"target.tokens_per_forward": max(tokens // 2, config.data.max_length)},
            "more, smaller matrix products",
        )


def _wider_targets(sizes: RunSizes) -> Iterator[Remedy]:
    """One target over more GPUs: those that there are, or else spare ones with them."""
    gpus = RunSizes.target_gpus(sizes.config)
    spare = sorted(set(range(_GPUS_A_NODE)) - RunSizes.gpus(sizes.config))
    for ranks in range(sizes.target_ranks + 1, _GPUS_A_NODE):
        missing = -len(gpus) % ranks
        if missing > len(spare) or not _can_split(sizes, ranks):
            continue
        changes: dict[str, object] = {"placement.target_tensor_parallel": ranks}
        cost = "fewer targets, two sums over its GPUs a layer"
        if missing:
            changes["placement.target"] = _listed(sorted(gpus | set(spare[:missing])))
            cost = f"{missing} more GPU(s) a node, two sums over a target's GPUs a layer"
        yield Remedy(f"each target over {ranks} GPUs", changes, cost)
        return


def _can_split(sizes: RunSizes, ranks: int) -> bool:
    try:
        check_shares(sizes.facts, ranks)
        sizes.decoder.share(ranks)
    except ValueError:
        return False
    return True


def _smaller_chunks(sizes: RunSizes) -> Iterator[Remedy]:
    rows, block = sizes.config.training.head_chunk_rows, sizes.shape.block_size
    smaller = max(rows // 2, _SMALLEST_CHUNK, block)
    if smaller < rows:
        yield Remedy(
            "smaller chunks of logits", {"training.head_chunk_rows": smaller}, "a few percent of the head's time"
        )


def _less_kept(config: RunConfig) -> Iterator[Remedy]:
    if not config.drafter.activation_checkpointing:
        yield Remedy(
            "activation checkpointing",
            {"drafter.activation_checkpointing": True},
            "one more forward of the drafter's layers",
        )
    if config.objective.weights == "dpace":
        yield Remedy(
            "shared teacher rows", {"objective.weights": "decay"}, "other row weights: dpace projects every teacher row"
        )


def _fewer_copies(sizes: RunSizes) -> Iterator[Remedy]:
    if sizes.num_copies > 1:
        yield Remedy(
            "drafter state spread over all nodes",
            {"placement.drafter_shards": "all"},
            "parameters travel between nodes, not gradients alone",
        )


def _more_ranks(sizes: RunSizes) -> Iterator[Remedy]:
    placement = sizes.config.placement
    gpus = RunSizes.gpus(sizes.config)
    spare = [gpu for gpu in range(_GPUS_A_NODE) if gpu not in gpus]
    drafters = RunSizes.drafter_gpus(sizes.config)
    wider = next(
        (size for size in range(placement.tensor_parallel + 1, len(drafters) + 1) if not len(drafters) % size), 0
    )
    if wider:
        yield Remedy("head shared by more drafter GPUs", {"placement.tensor_parallel": wider}, "more exchange of rows")
    groups = len(drafters) // placement.tensor_parallel
    if len(spare) >= groups:
        heads = sorted(RunSizes.head_gpus(sizes.config) | set(spare[-groups:]))
        yield Remedy("head-only GPUs", {"placement.head": _listed(heads)}, f"{groups} more GPU(s) a node")
    if spare:
        more = sorted(drafters | {spare[-1]})
        whole = placement.tensor_parallel == len(drafters)
        changes: dict[str, object] = {"placement.drafter": _listed(more)}
        if whole:
            changes["placement.tensor_parallel"] = len(more)
        if whole or len(more) % placement.tensor_parallel == 0:
            yield Remedy("one more drafter GPU", changes, "one more GPU a node")


def _smaller_packs(sizes: RunSizes) -> Iterator[Remedy]:
    config = sizes.config
    fewer_tokens = config.data.token_budget // 2
    if fewer_tokens >= config.data.max_length and fewer_tokens > config.anchors.per_pack:
        yield Remedy(
            "smaller packs", {"data.token_budget": fewer_tokens}, "fewer tokens a step: the drafter's work weighs more"
        )
    if config.anchors.per_pack > 1:
        yield Remedy(
            "fewer anchors", {"anchors.per_pack": config.anchors.per_pack // 2}, "half the trained blocks a pack"
        )
    smaller = config.drafter.block_size // 2
    if smaller >= 2:
        yield Remedy("smaller blocks", {"drafter.block_size": smaller}, "shorter drafts")


def _listed(gpus: list[int]) -> str:
    return ",".join(str(gpu) for gpu in gpus)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) and "," in value else str(value)
