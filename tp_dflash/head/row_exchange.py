"""The collectives of the head loss: rows to every shard, shard statistics to every rank, gradients back to their rows.

Comes in: equal numbers of rows from every rank of a group. Goes out: new tensors; no input is ever written to. Each
function states its adjoint. ``group=None`` is a world of one: the same calls return what they were given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

# torch 2.13 renamed both and warns about the old names; 2.11 has only those.
if hasattr(dist, "all_gather_single"):
    all_gather_single, _reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single
else:
    all_gather_single, _reduce_scatter_single = dist.all_gather_into_tensor, dist.reduce_scatter_tensor


@dataclass(frozen=True, eq=False)
class RowExchange:
    """Moves rows between the ranks of ``group``; ``row_ranks`` of its ``size`` ranks bring rows, this one is ``rank``."""

    group: ProcessGroup | None
    size: int
    rank: int
    row_ranks: tuple[int, ...]

    @property
    def brings_rows(self) -> bool:
        return self.rank in self.row_ranks

    @property
    def place(self) -> int:
        """This rank's place among those that bring rows (0 for a head-only rank, whose rows nobody reads)."""
        return self.row_ranks.index(self.rank) if self.brings_rows else 0

    def gather_rows(self, local_cX: Tensor) -> Tensor:
        """Rows of all ranks that bring any, in rank order: (c, X) each -> (R c, X); a head-only rank passes any (c, X).

        Adjoint: ``return_sums``.
        """
        if self.group is None:
            return local_cX
        gathered = local_cX.new_empty((self.size * local_cX.shape[0], *local_cX.shape[1:]))
        all_gather_single(gathered, local_cX.contiguous(), group=self.group)
        if len(self.row_ranks) == self.size:
            return gathered
        blocks = gathered.unflatten(0, (self.size, local_cX.shape[0]))
        if self.row_ranks == tuple(range(len(self.row_ranks))):
            return blocks[: len(self.row_ranks)].flatten(0, 1)
        return torch.cat([blocks[rank] for rank in self.row_ranks])

    def gather_statistics(self, local_CS: Tensor) -> Tensor:
        """Every rank's statistics of the same rows, stacked in rank order: (C, S) -> (size, C, S).

        Adjoint: none; statistics are constants of the gradient, which is formed from their merge in closed form.
        """
        if self.group is None:
            return local_CS[None]
        gathered = local_CS.new_empty((self.size, *local_CS.shape))
        all_gather_single(gathered.flatten(0, 1), local_CS.contiguous(), group=self.group)
        return gathered

    def return_sums(self, partial_CX: Tensor) -> Tensor:
        """Sum the ranks' partial rows and give each rank its own: (R c, X) on every rank -> (c, X), a reduce-scatter.

        The input is in the order of ``gather_rows``. A head-only rank gets rows of no meaning. Adjoint: ``gather_rows``.
        """
        if self.group is None:
            return partial_CX
        if len(self.row_ranks) < self.size:
            partial_CX = self._with_empty_blocks(partial_CX)
        own_cX = partial_CX.new_empty((partial_CX.shape[0] // self.size, *partial_CX.shape[1:]))
        _reduce_scatter_single(own_cX, partial_CX.contiguous(), group=self.group)
        return own_cX

    def _with_empty_blocks(self, partial_CX: Tensor) -> Tensor:
        rows = partial_CX.shape[0] // max(1, len(self.row_ranks))
        blocks = partial_CX.new_zeros((self.size, rows, *partial_CX.shape[1:]))
        for place, rank in enumerate(self.row_ranks):
            blocks[rank] = partial_CX[place * rows : (place + 1) * rows]
        return blocks.flatten(0, 1)
