"""A head loss on made-up rows: every rank's inputs from one seed, the sharded call on one rank, the dense oracle on all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, dense_head_loss, sharded_head_loss


@dataclass(frozen=True)
class Problem:
    """Sizes and settings of one comparison; ``rows`` ranks bring blocks, the other ``size - rows`` only own a shard."""

    size: int
    num_blocks: int = 6
    block_size: int = 4
    vocabulary: int = 23
    width: int = 5
    rows: tuple[int, ...] | None = None
    objective: Objective = field(default_factory=Objective)
    dtype: torch.dtype = torch.float64
    chunk_rows: int = 7
    bucket: bool = False
    shared: bool = False
    trained: bool = False
    weights: str = "some"
    upstream: float = 1.0
    seed: int = 0
    scale: float = 1.0

    @property
    def row_ranks(self) -> tuple[int, ...]:
        return tuple(range(self.size)) if self.rows is None else self.rows

    def heads(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.vocabulary, self.width)
        drafter = torch.randn(shape, generator=generator, dtype=torch.float64) * self.scale
        teacher = torch.randn(shape, generator=generator, dtype=torch.float64) * self.scale
        return drafter.to(self.dtype), teacher.to(self.dtype)

    def rows_of(self, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Hidden, teacher hidden, teacher index, labels, weights of one rank: overlapping blocks as real anchors give."""
        if rank not in self.row_ranks:
            empty = torch.empty(0, dtype=torch.int64)
            none = torch.empty((0, self.width), dtype=self.dtype)
            return none, none, empty, empty, torch.empty(0, dtype=torch.float32)
        generator = torch.Generator().manual_seed(1000 * self.seed + rank + 1)
        num_rows = self.num_blocks * self.block_size
        anchors = torch.randperm(2 * self.num_blocks, generator=generator)[: self.num_blocks].sort().values
        position = (anchors[:, None] + torch.arange(self.block_size)).flatten()
        unique, index = torch.unique(position, return_inverse=True)
        hidden = torch.randn((num_rows, self.width), generator=generator, dtype=torch.float64)
        teacher = torch.randn((unique.shape[0], self.width), generator=generator, dtype=torch.float64)
        labels = torch.randint(self.vocabulary, (num_rows,), generator=generator)
        labels[:2] = torch.tensor([0, self.vocabulary - 1])
        weights = torch.rand(num_rows, generator=generator) + 0.1
        weights.view(-1, self.block_size)[:, 0] = 0.0
        if self.weights == "some":
            weights[torch.rand(num_rows, generator=generator) < 0.3] = 0.0
            labels[weights == 0] = -100
            index[weights == 0] = -7
        elif self.weights == "none":
            weights.zero_()
        return hidden.to(self.dtype), teacher.to(self.dtype), index, labels, weights


def sharded(rank: int, problem: Problem) -> dict[str, Any]:
    """The sharded loss and its gradients on one rank, with every input's bits compared before and after."""
    drafter, teacher = problem.heads()
    vocab = VocabRange.split(problem.vocabulary, problem.size)[rank]
    drafter_head = HeadShard(drafter[vocab.start : vocab.stop].clone().requires_grad_(problem.trained), vocab)
    teacher_head = HeadShard(teacher[vocab.start : vocab.stop].clone(), vocab)
    rows = problem.rows_of(rank)
    rows[0].requires_grad_()
    before = [tensor.detach().clone() for tensor in (*rows, drafter_head.weight_vD, teacher_head.weight_vD)]
    counts = [problem.rows_of(r) for r in problem.row_ranks]
    result = sharded_head_loss(
        *rows,
        drafter_head=drafter_head,
        teacher_head=teacher_head,
        objective=problem.objective,
        block_size=problem.block_size,
        group=dist.group.WORLD if problem.size > 1 else None,
        chunk_rows=problem.chunk_rows,
        active_rows=max(1, max(int((c[4] != 0).sum()) for c in counts)) + 1 if problem.bucket else None,
        teacher_rows=max(c[1].shape[0] for c in counts) if problem.shared else None,
    )
    (result.loss_sum * problem.upstream).backward()
    after = (*rows, drafter_head.weight_vD, teacher_head.weight_vD)
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, after, strict=True)), "an input was written to"
    grad = rows[0].grad
    return {
        "loss_sum": result.loss_sum.detach(),
        "weight_sum": result.weight_sum,
        "hidden_grad": torch.zeros_like(rows[0].detach()) if grad is None else grad,
        "weight_grad": drafter_head.weight_vD.grad,
        "statistics": result.statistics.tensors(),
    }


def expected(problem: Problem) -> dict[str, Any]:
    """The dense oracle in fp64 over the rows of all ranks: gradients by autograd, everything split by rank again."""
    drafter, teacher = (head.double() for head in problem.heads())
    drafter.requires_grad_()
    parts = [problem.rows_of(rank) for rank in problem.row_ranks]
    parts = parts or [problem.rows_of(-1)]
    hidden = torch.cat([part[0] for part in parts]).double().requires_grad_()
    offsets = torch.tensor([0, *(part[1].shape[0] for part in parts)]).cumsum(0)
    result = dense_head_loss(
        hidden,
        torch.cat([part[1] for part in parts]).double(),
        torch.cat([part[2] + offset for part, offset in zip(parts, offsets, strict=False)]),
        torch.cat([part[3] for part in parts]),
        torch.cat([part[4] for part in parts]),
        drafter_weight_VD=drafter,
        teacher_weight_VD=teacher,
        objective=problem.objective,
        block_size=problem.block_size,
    )
    (result.loss_sum * problem.upstream).backward()
    assert hidden.grad is not None
    return {
        "loss_sum": result.loss_sum.detach(),
        "weight_sum": result.weight_sum,
        "hidden_grad": hidden.grad,
        "weight_grad": drafter.grad,
        "statistics": result.statistics.tensors(),
    }


def assert_equals_oracle(
    problem: Problem, results: list[dict[str, Any]], rtol: float = 1e-9, atol: float = 1e-11
) -> None:
    """Compare what the ranks returned, put together in rank order, with the oracle."""
    want = expected(problem)

    def close(got: Tensor, wanted: Tensor, what: str) -> None:
        torch.testing.assert_close(
            got.double(), wanted.double(), rtol=rtol, atol=atol, msg=lambda text: f"{what} of {problem}: {text}"
        )

    close(torch.stack([r["loss_sum"] for r in results]).sum(), want["loss_sum"], "loss sum")
    close(torch.stack([r["weight_sum"].double() for r in results]).sum(), want["weight_sum"], "weight sum")
    close(torch.cat([r["hidden_grad"] for r in results]), want["hidden_grad"], "hidden gradient")
    if problem.trained:
        close(torch.cat([r["weight_grad"] for r in results]), want["weight_grad"], "head gradient")
    for name, wanted in want["statistics"].items():
        close(torch.cat([r["statistics"][name] for r in results]), wanted, name)
