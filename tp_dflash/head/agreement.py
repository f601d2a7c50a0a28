"""One small exchange on the host before any tensor moves, so that a wrong call is the same error on every rank.

Comes in: what this rank was called with, as a fixed number of integers. Goes out: the facts of every rank of the group, or
the same ValueError on all of them. A collective whose ranks disagree about shapes hangs or mixes up rows; after this
exchange none can. It runs on CPU tensors, so the device is never waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.head.call_facts import DTYPES, CallFacts
from tp_dflash.head.row_exchange import all_gather_single
from tp_dflash.head.vocab_range import tiling_problem

# Token ids travel inside floating-point statistics; fp32 holds whole numbers up to here.
_LARGEST_VOCABULARY = 2**24


def exchange_facts(facts: CallFacts, group: ProcessGroup | None, host_group: ProcessGroup | None) -> list[CallFacts]:
    """Every rank's facts in the group's rank order; ValueError, the same on all ranks, if they do not fit together.

    ``host_group``: a group with a CPU backend whose ranks, a superset of ``group``'s, all make this call. Without it
    ``group`` itself is used, on the CPU if it has a CPU backend. Adjoint: none, only whole numbers travel.
    """
    everyone = [facts]
    if group is not None:
        everyone = _all_gather_facts(facts, group, host_group)
    problem = next((text for check in _CHECKS if (text := check(everyone))), None)
    if problem:
        raise ValueError(f"head loss: {problem}")
    return everyone


def _all_gather_facts(facts: CallFacts, group: ProcessGroup, host_group: ProcessGroup | None) -> list[CallFacts]:
    carrier = group if host_group is None else host_group
    device = torch.device("cpu") if host_group is not None else exchange_device(group)
    mine = torch.tensor(astuple(facts), dtype=torch.int64, device=device)
    gathered = mine.new_empty(dist.get_world_size(carrier) * mine.numel())
    all_gather_single(gathered, mine, group=carrier)
    rows = gathered.view(-1, mine.numel()).tolist()
    carriers = dist.get_process_group_ranks(carrier)
    return [CallFacts(*rows[carriers.index(rank)]) for rank in dist.get_process_group_ranks(group)]


def exchange_device(group: ProcessGroup) -> torch.device:
    """The CPU if the group has a CPU backend, else the current GPU (then reading the result waits for it)."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())


def _shapes(everyone: list[CallFacts]) -> str | None:
    for rank, facts in enumerate(everyone):
        lengths = (facts.num_labels, facts.num_weights, facts.num_teacher_index)
        if lengths != (facts.num_rows,) * 3:
            return (
                f"rank {rank} has {facts.num_rows} hidden rows, but {lengths[0]} labels, {lengths[1]} weights and "
                f"{lengths[2]} teacher indices; all four need one entry a row"
            )
        if min(facts.dtype, facts.teacher_dtype, facts.drafter_dtype, facts.teacher_head_dtype) < 0:
            return f"rank {rank} has rows or heads that are not bfloat16, float32 or float64; convert them first"
    return None


def _widths(everyone: list[CallFacts]) -> str | None:
    for rank, facts in enumerate(everyone):
        for what, width, head, total, dtype, head_dtype, trained in (
            ("hidden rows", facts.width, facts.drafter_width, facts.drafter_total, facts.dtype, facts.drafter_dtype,
             facts.drafter_trained),
            ("teacher hidden rows", facts.teacher_width, facts.teacher_head_width, facts.teacher_total,
             facts.teacher_dtype, facts.teacher_head_dtype, 0),
        ):  # fmt: skip
            if width != head and width == total:
                return f"rank {rank}'s {what} are {width} wide, as wide as the vocabulary: pass hidden rows, not logits"
            if width != head:
                return f"rank {rank}'s {what} are {width} wide, its head shard {head}; they must be equal"
            if dtype != head_dtype and not trained:
                return (
                    f"rank {rank}'s {what} are {DTYPES[dtype]}, its frozen head shard {DTYPES[head_dtype]}; convert one "
                    "of them once, outside the loop"
                )
    return None


def _heads(everyone: list[CallFacts]) -> str | None:
    for name in ("drafter", "teacher"):
        for rank, facts in enumerate(everyone):
            vocab = facts.drafter_range if name == "drafter" else facts.teacher_range
            rows, padding = (
                (facts.drafter_rows, facts.drafter_padding)
                if name == "drafter"
                else (facts.teacher_rows, facts.teacher_padding)
            )
            if rows == vocab.total + padding and rows != vocab.size + padding:
                return (
                    f"rank {rank}'s {name} head has all {rows} rows where a shard of {vocab.size} belongs "
                    f"({vocab.start}..{vocab.stop} of {vocab.total}); cut it with HeadShard.cut"
                )
            if rows != vocab.size + padding:
                return (
                    f"rank {rank}'s {name} head shard has {rows} rows, its vocab range {vocab.start}..{vocab.stop} and "
                    f"{padding} padding rows ask for {vocab.size + padding}; pass the range that was cut"
                )
        ranges = [facts.drafter_range if name == "drafter" else facts.teacher_range for facts in everyone]
        if problem := tiling_problem(ranges):
            return (
                f"the {name} head's shards do not tile the vocabulary: {problem}; a full head where a shard belongs? Give "
                "rank r VocabRange.split(total, size of the group)[r]"
            )
    for rank, facts in enumerate(everyone):
        if facts.drafter_range != facts.teacher_range:
            return (
                f"rank {rank}'s drafter shard is {facts.drafter_range}, its teacher shard {facts.teacher_range}; both heads "
                "must be cut alike (for a reduced vocabulary restrict the teacher's rows with DraftVocabulary)"
            )
        if facts.drafter_total > _LARGEST_VOCABULARY:
            return f"the vocabulary has {facts.drafter_total} rows, at most {_LARGEST_VOCABULARY} are supported"
    return None


def _rows(everyone: list[CallFacts]) -> str | None:
    bringing = {rank: facts for rank, facts in enumerate(everyone) if facts.num_rows}
    counts = {rank: facts.num_rows for rank, facts in bringing.items()}
    if len(set(counts.values())) > 1:
        return (
            f"the ranks bring unequal numbers of rows, {counts} (rank: rows); pad with rows of weight 0 to one number, or "
            "bring none (a head-only rank)"
        )
    for rank, facts in bringing.items():
        if facts.num_teacher_rows == 0:
            return f"rank {rank} brings {facts.num_rows} rows and no teacher rows; pass at least one"
        if facts.num_rows % facts.block_size:
            return (
                f"rank {rank} brings {facts.num_rows} rows, not whole blocks of {facts.block_size}; pad the last block with "
                "rows of weight 0"
            )
    return None


def _settings(everyone: list[CallFacts]) -> str | None:
    names = ("width", "teacher_width", "dtype", "teacher_dtype", "block_size", "chunk_rows", "active_rows",
             "teacher_bucket", "settings")  # fmt: skip
    for name in names:
        values = [vars(facts)[name] for facts in everyone]
        if len(set(values)) > 1:
            return f"the ranks were called with different {name}: {values}; every rank of the group must pass the same"
    return None


def _limits(everyone: list[CallFacts]) -> str | None:
    for rank, facts in enumerate(everyone):
        if facts.block_size < 1 or facts.chunk_rows < 1:
            return (
                f"rank {rank} passes block_size {facts.block_size} and chunk_rows {facts.chunk_rows}, expected at least 1; "
                "chunk_rows is the number of rows whose logits exist at once"
            )
        if 0 in (facts.active_rows, facts.teacher_bucket):
            return f"rank {rank} passes a bucket of no rows, expected at least 1; pass None to use the full size"
    return None


_CHECKS: tuple[Callable[[list[CallFacts]], str | None], ...] = (_limits, _shapes, _widths, _heads, _rows, _settings)
