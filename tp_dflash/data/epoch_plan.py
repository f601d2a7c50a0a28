"""The packs of one epoch, and which step takes which of them.

In: what a BatchPlan drew. Out: document ids by pack, packs by step, and the Pack itself read from the store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tp_dflash.blocks import Pack
from tp_dflash.data.store import TokenStore


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The packs of one epoch: filled ones, then the empty ones that complete the last step.

    document_id_O: ids of the epoch's documents in the order of their packs, (O,) int64. pack_start_P: where each filled
    pack starts in it, and O as the last entry. num_packs: filled and empty packs. first_pack: packs before it were
    consumed before the run was continued; steps are counted from it. packs_per_step: drafter ranks times accumulation.
    """

    epoch: int
    packs_per_step: int
    first_pack: int
    num_packs: int
    document_id_O: np.ndarray
    pack_start_P: np.ndarray

    @property
    def num_filled_packs(self) -> int:
        return len(self.pack_start_P) - 1

    @property
    def num_steps(self) -> int:
        return (self.num_packs - self.first_pack) // self.packs_per_step

    @property
    def packs(self) -> tuple[tuple[int, ...], ...]:
        """Document ids of every pack, the empty packs included."""
        return tuple(self.document_ids(pack_id) for pack_id in range(self.num_packs))

    def document_ids(self, pack_id: int) -> tuple[int, ...]:
        """Document ids of one pack; none for the empty packs at the end."""
        if not 0 <= pack_id < self.num_packs:
            raise ValueError(
                f"expected a pack below {self.num_packs} in epoch {self.epoch}, got {pack_id}; plan the next epoch"
            )
        if pack_id >= self.num_filled_packs:
            return ()
        start, stop = self.pack_start_P[pack_id : pack_id + 2]
        return tuple(self.document_id_O[start:stop].tolist())

    def step_packs(self, step: int) -> range:
        """Pack ids of a step, 0..num_steps-1, ascending; the i-th of n drafter ranks takes those that are i modulo n."""
        if not 0 <= step < self.num_steps:
            raise ValueError(
                f"expected a step below {self.num_steps} in epoch {self.epoch}, got {step}; plan the next epoch"
            )
        start = self.first_pack + step * self.packs_per_step
        return range(start, start + self.packs_per_step)

    def pack(self, store: TokenStore, pack_id: int) -> Pack:
        """Read one pack's documents from the store that the plan was made for."""
        documents = tuple(store.document(document_id) for document_id in self.document_ids(pack_id))
        return Pack(pack_id=pack_id, epoch=self.epoch, documents=documents)

    def num_tokens(self, length_D: np.ndarray) -> int:
        """Tokens of all packs; length_D: the lengths that the plan was made from."""
        return int(self._length_O(length_D).sum())

    def padding(self, length_D: np.ndarray) -> float:
        """Share of padding among the rows of the epoch if each pack were padded to its longest document.

        A target that runs a pack in several forwards of like length pads less than this.
        """
        if self.num_filled_packs == 0:
            return 0.0
        length_O = self._length_O(length_D)
        longest_P = np.maximum.reduceat(length_O, self.pack_start_P[:-1])
        return float(1 - length_O.sum() / (longest_P * np.diff(self.pack_start_P)).sum())

    def _length_O(self, length_D: np.ndarray) -> np.ndarray:
        return np.asarray(length_D)[self.document_id_O % len(length_D)]
