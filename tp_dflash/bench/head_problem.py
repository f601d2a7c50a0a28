"""The head loss that the benchmark measures: sizes, and one rank's made-up tensors.

Comes in: sizes. Goes out: hidden rows, labels, weights and head shards with the statistics of a drafter in training: the
teacher's rows are the drafter's plus noise, labels are any token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange

_WEIGHT_STD = 0.02
_TEACHER_NOISE = 0.3


@dataclass(frozen=True)
class HeadSizes:
    """rows: N of all ranks together. width: D. vocabulary: V. chunk_rows: rows whose logits exist at once."""

    rows: int
    width: int
    vocabulary: int
    block_size: int
    chunk_rows: int

    def __post_init__(self) -> None:
        if min(self.rows, self.width, self.vocabulary, self.block_size, self.chunk_rows) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self}; change the flags of bench head")

    def with_rows(self, rows: int, num_ranks: int) -> HeadSizes:
        """The same head with another number of rows, rounded to whole blocks on each of so many ranks, at least one."""
        unit = self.block_size * num_ranks
        return replace(self, rows=max(1, round(rows / unit)) * unit)

    def rows_of_rank(self, num_ranks: int) -> int:
        """Each rank's rows, in whole blocks."""
        blocks = self.rows // self.block_size // num_ranks
        if blocks * num_ranks * self.block_size != self.rows:
            raise ValueError(
                f"expected rows that are whole blocks of {self.block_size} on each of {num_ranks} ranks, got {self.rows}; "
                f"take a multiple of {num_ranks * self.block_size}"
            )
        return blocks * self.block_size

    def product_flops(self, vocabulary: int) -> float:
        """Operations of one matrix product of all rows with ``vocabulary`` head rows."""
        return 2.0 * self.rows * self.width * vocabulary


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """One rank's tensors. teacher_index_N points into teacher_hidden_UD; the head is tied and frozen."""

    sizes: HeadSizes
    hidden_ND: Tensor
    teacher_hidden_UD: Tensor
    teacher_index_N: Tensor
    labels_N: Tensor
    weights_N: Tensor
    head: HeadShard

    @property
    def objective(self) -> Objective:
        return Objective(kl=0.9, ce=0.1)

    def teacher_rows_N(self) -> Tensor:
        """One teacher row for each row: what those need who do not share them."""
        return self.teacher_hidden_UD[self.teacher_index_N]


def make_problem(
    sizes: HeadSizes, rank: int, num_ranks: int, rows_per_teacher_row: int, device: torch.device
) -> HeadProblem:
    """Tensors of one of ``num_ranks`` ranks; every ``rows_per_teacher_row`` rows of different blocks share a teacher row."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows = sizes.rows_of_rank(num_ranks)
    vocab = VocabRange.split(sizes.vocabulary, num_ranks)[rank]
    generator = torch.Generator(device).manual_seed(rank)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    weight_vD = torch.empty((vocab.size, sizes.width), dtype=dtype, device=device)
    for start in range(0, vocab.size, 8192):
        part = weight_vD[start : start + 8192]
        part.copy_(normal(*part.shape) * _WEIGHT_STD)
    hidden_ND = normal(rows, sizes.width).to(dtype)
    num_teacher_rows = -(-rows // rows_per_teacher_row)
    teacher_UD = hidden_ND[:num_teacher_rows].float() + _TEACHER_NOISE * normal(num_teacher_rows, sizes.width)
    return HeadProblem(
        sizes=sizes,
        hidden_ND=hidden_ND,
        teacher_hidden_UD=teacher_UD.to(dtype),
        teacher_index_N=torch.arange(rows, device=device) % num_teacher_rows,
        labels_N=torch.randint(sizes.vocabulary, (rows,), generator=generator, device=device),
        weights_N=torch.ones(rows, device=device),
        head=HeadShard(weight_vD, vocab),
    )
