"""What one rank of a head loss was called with, as whole numbers: the noun that the ranks compare before they start."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.head.head_shard import HeadShard
from tp_dflash.head.vocab_range import VocabRange

DTYPES = (torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class CallFacts:
    """Everything about one rank's call that the ranks must agree on, or know of each other. Whole numbers only."""

    num_rows: int
    width: int
    dtype: int
    num_teacher_rows: int
    teacher_width: int
    teacher_dtype: int
    num_teacher_index: int
    num_labels: int
    num_weights: int
    drafter_start: int
    drafter_stop: int
    drafter_total: int
    drafter_rows: int
    drafter_padding: int
    drafter_width: int
    drafter_dtype: int
    drafter_trained: int
    teacher_start: int
    teacher_stop: int
    teacher_total: int
    teacher_rows: int
    teacher_padding: int
    teacher_head_width: int
    teacher_head_dtype: int
    wants_hidden: int
    wants_weight: int
    block_size: int
    chunk_rows: int
    active_rows: int
    teacher_bucket: int
    settings: int

    @property
    def drafter_range(self) -> VocabRange:
        return VocabRange(self.drafter_start, self.drafter_stop, self.drafter_total)

    @property
    def teacher_range(self) -> VocabRange:
        return VocabRange(self.teacher_start, self.teacher_stop, self.teacher_total)

    @staticmethod
    def collect(
        rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        drafter_head: HeadShard,
        teacher_head: HeadShard,
        *,
        wants_hidden: bool,
        wants_weight: bool,
        block_size: int,
        chunk_rows: int,
        active_rows: int | None,
        teacher_rows: int | None,
        settings: str,
    ) -> CallFacts:
        """The facts of a call; ``rows`` are hidden, teacher hidden, teacher index, labels and weights in that order."""
        hidden, teacher_hidden, teacher_index, labels, weights = rows
        drafter, teacher = drafter_head.weight_vD, teacher_head.weight_vD
        return CallFacts(
            num_rows=_length(hidden, 2),
            width=_width(hidden),
            dtype=_dtype_code(hidden),
            num_teacher_rows=_length(teacher_hidden, 2),
            teacher_width=_width(teacher_hidden),
            teacher_dtype=_dtype_code(teacher_hidden),
            num_teacher_index=_length(teacher_index, 1),
            num_labels=_length(labels, 1),
            num_weights=_length(weights, 1),
            drafter_start=drafter_head.vocab.start,
            drafter_stop=drafter_head.vocab.stop,
            drafter_total=drafter_head.vocab.total,
            drafter_rows=_length(drafter, 2),
            drafter_padding=drafter_head.num_padding,
            drafter_width=_width(drafter),
            drafter_dtype=_dtype_code(drafter),
            drafter_trained=int(drafter.requires_grad),
            teacher_start=teacher_head.vocab.start,
            teacher_stop=teacher_head.vocab.stop,
            teacher_total=teacher_head.vocab.total,
            teacher_rows=_length(teacher, 2),
            teacher_padding=teacher_head.num_padding,
            teacher_head_width=_width(teacher),
            teacher_head_dtype=_dtype_code(teacher),
            wants_hidden=int(wants_hidden),
            wants_weight=int(wants_weight),
            block_size=block_size,
            chunk_rows=chunk_rows,
            active_rows=-1 if active_rows is None else active_rows,
            teacher_bucket=-1 if teacher_rows is None else teacher_rows,
            settings=zlib.crc32(settings.encode()),
        )


def _length(tensor: Tensor, dims: int) -> int:
    return tensor.shape[0] if tensor.dim() == dims else -1


def _width(tensor: Tensor) -> int:
    return tensor.shape[1] if tensor.dim() == 2 else -1


def _dtype_code(tensor: Tensor) -> int:
    return DTYPES.index(tensor.dtype) if tensor.dtype in DTYPES else -1
