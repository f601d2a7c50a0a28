"""A data set's features written once, and runs that read them in place of a target.

In: a run's configuration. Out: a folder of features that every run with the same data, target and tapped layers can use, with
any number of drafter ranks, anchors and epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout, FeatureBatch, Pack
from tp_dflash.config.run import RunConfig
from tp_dflash.data import BatchPlan, DataSplits, open_store, prepare_store, store_folder
from tp_dflash.drafter import DrafterShape
from tp_dflash.parallel import open_rows
from tp_dflash.parallel.decision import decided_by_first
from tp_dflash.streams import CachedFeatures, FeatureCacheWriter, PayloadShapes
from tp_dflash.streams.cache_files import cache_bytes, check_disk, complete_cache, is_complete
from tp_dflash.streams.cache_writer import whole_layout
from tp_dflash.target import Target, TargetFacts, check_target, read_target_facts
from tp_dflash.training.run_context import RunContext, run_tokenizer

_NO_MORE = -1


@dataclass(frozen=True)
class CachePlan:
    """What is about to be written, told before it is. num_tokens: of the whole data set; my_tokens: of this rank's packs."""

    folder: Path
    num_documents: int
    num_tokens: int
    my_tokens: int
    num_bytes: int
    exists: bool


def write_feature_cache(
    config: RunConfig,
    folder: Path,
    group: ProcessGroup,
    device: torch.device,
    announce: Callable[[CachePlan], None],
    progress: Callable[[int], None],
) -> None:
    """Write the features of all training documents; every rank of the group is a target rank here.

    placement.target_tensor_parallel ranks in a row hold one target together, of which the first writes. announce: told the
    sizes before anything is computed. progress: told the tokens of each pack of this rank. What an interrupted run has
    written is kept. A complete cache of the same data and target is left as it is.
    """
    index, num_targets = _target_index(group, config.placement.target_tensor_parallel)
    facts = read_target_facts(config.target)
    shape = DrafterShape.of(config.drafter, facts)
    data = open_store(decided_by_first(lambda: _prepared(config), group))
    identity = cache_identity(facts, shape, data)
    store = data.train
    packs = BatchPlan(store.length_D, config.data.token_budget, config.training.seed, 1).plan_epoch(0)
    mine = range(index, packs.num_filled_packs, num_targets)
    supervised = data.report.splits[store.split].supervised_tokens
    embeddings = facts.vocab_size * num_targets
    size = cache_bytes(store.num_tokens, supervised, embeddings, shape.feature_size, shape.hidden_size, facts.dtype)
    exists = decided_by_first(lambda: _look(folder, identity, size), group)
    my_tokens = sum(packs.pack(store, pack_id).num_tokens for pack_id in mine)
    announce(CachePlan(folder, store.num_documents, store.num_tokens, my_tokens, size, exists))
    if exists:
        return
    together = open_rows(group, config.placement.target_tensor_parallel, device)
    target = Target.load(config.target, facts, shape.target_layer_ids, device, together)
    check_target(target)
    if together is not None and dist.get_rank(together) > 0:
        _follow(target, together, lambda pack_id: packs.pack(store, pack_id))
    else:
        compute = target.features if together is None else _Led(target, together).features
        writer = FeatureCacheWriter(folder, index, store.num_documents, compute)
        writer.write((packs.pack(store, pack_id) for pack_id in mine), progress)
        if together is not None:
            _tell(_NO_MORE, target, together)
    dist.barrier(group)
    decided_by_first(lambda: complete_cache(folder, identity, store.num_documents), group)


def cache_identity(facts: TargetFacts, shape: DrafterShape, data: DataSplits) -> dict[str, Any]:
    """What the features depend on. Anchors, block size and epochs are free."""
    return {
        "data": data.fingerprint,
        "target": facts.name,
        "num_layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "vocab_size": facts.vocab_size,
        "tapped layers": list(shape.target_layer_ids),
        "dtype": str(facts.dtype).removeprefix("torch."),
    }


def open_cached_features(context: RunContext, shapes: PayloadShapes) -> CachedFeatures:
    """The features of ``data.feature_cache`` for this drafter rank; ValueError if they are of something else."""
    folder = Path(str(context.config.data.feature_cache))
    if not context.place.is_target:
        raise ValueError(
            f"data.feature_cache: expected no target ranks, got placement.target = {context.config.placement.target!r}; set "
            'placement.target = "colocated"'
        )
    identity = cache_identity(context.facts, context.shape, context.data)
    return CachedFeatures(folder, identity, context.data.train.num_documents, shapes, context.device)


def needs_target(config: RunConfig) -> bool:
    """Whether ranks that may host the target have to load it: for features, or to decode prompts with."""
    return config.data.feature_cache is None or bool(config.evaluation.prompts)


def _target_index(group: ProcessGroup, together: int) -> tuple[int, int]:
    """(which target this rank holds or shares in, number of targets)."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    if num_ranks % together:
        raise ValueError(
            f"placement.target_tensor_parallel: expected a divisor of {num_ranks} ranks, got {together}; change one of them"
        )
    return rank // together, num_ranks // together


class _Led:
    """A target whose other ranks are told which pack comes next: the writer passes over what is there already."""

    def __init__(self, target: Target, together: ProcessGroup) -> None:
        self.target, self.together = target, together

    def features(self, layout: BlockLayout) -> FeatureBatch:
        _tell(layout.pack.pack_id, self.target, self.together)
        return self.target.features(layout)


def _follow(target: Target, together: ProcessGroup, pack_of: Callable[[int], Pack]) -> None:
    while (pack_id := _tell(_NO_MORE, target, together)) != _NO_MORE:
        target.follow(whole_layout(pack_of(pack_id), set()))


def _tell(pack_id: int, target: Target, together: ProcessGroup) -> int:
    """What the first rank says, on all; broadcast, no adjoint."""
    told = torch.tensor([pack_id], device=target.device)
    dist.broadcast(told, group=together, group_src=0)
    return int(told)


def _prepared(config: RunConfig) -> Path:
    tokenizer = run_tokenizer(config)
    folder = store_folder(config.data, tokenizer)
    prepare_store(config.data, tokenizer, folder)
    return folder


def _look(folder: Path, identity: dict[str, Any], size: int) -> bool:
    """Whether the cache is there already; ValueError if there is no room for it."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_complete(folder, identity):
        return True
    check_disk(folder, size)
    return False
