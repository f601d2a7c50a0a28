"""Which documents go into which pack: a pure function of lengths, weights, seed, epoch and token budget.

In: document lengths and how often each is used. Out: one EpochPlan an epoch, the same on every rank and every machine:
only integer arithmetic, exact products and a counter generator take part. Packs and their order do not depend on the
number of ranks; that number only decides how many empty packs follow at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tp_dflash.data.epoch_plan import EpochPlan

# Documents mix with others whose length differs by at most 1/32: padding to the longest of a pack stays near 3%.
_LENGTH_SPREAD = 32
_ORDER, _MIX, _PACKS, _USES = range(4)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All that determines the packs of every epoch of a run.

    length_D: tokens of each document, (D,). weight_D: uses of each document per epoch, (D,) float64; None: once each.
    packs_per_step: drafter ranks (tensor-parallel groups of drafters) times accumulation.
    """

    length_D: np.ndarray
    token_budget: int
    seed: int
    packs_per_step: int
    weight_D: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.packs_per_step < 1:
            raise ValueError(f"expected at least one pack a step, got {self.packs_per_step}; count the drafter ranks")
        if len(self.length_D) == 0:
            raise ValueError("expected at least one document, got none; see the report of the prepared data")
        longest = int(np.max(self.length_D))
        if longest > self.token_budget:
            raise ValueError(
                f"expected documents of at most {self.token_budget} tokens, got one of {longest}; raise "
                "data.token_budget, or lower data.max_length and prepare again"
            )

    def plan_epoch(self, epoch: int, first_pack: int = 0) -> EpochPlan:
        """Plan an epoch. ``first_pack``: so many of its packs were consumed before a run was continued.

        A run continued with the same packs_per_step may as well skip whole steps of the plan from pack 0.
        """
        if first_pack < 0:
            raise ValueError(f"expected a pack of epoch {epoch} to go on from, got {first_pack}; count from 0")
        document_id_O, length_O = self._uses(epoch)
        order_O = self._mixed_by_length(length_O, epoch)
        start_P = _fill(length_O[order_O], self.token_budget)
        random_P = self._random(_PACKS, epoch, len(start_P) - 1)
        document_id_O, start_P = _shuffle_packs(document_id_O[order_O], start_P, random_P)
        num_steps = max(0, -(-(len(start_P) - 1 - first_pack) // self.packs_per_step))
        return EpochPlan(
            epoch=epoch,
            packs_per_step=self.packs_per_step,
            first_pack=first_pack,
            num_packs=first_pack + num_steps * self.packs_per_step,
            document_id_O=document_id_O,
            pack_start_P=start_P,
        )

    def num_steps(self, epochs: int) -> int:
        """Steps of so many whole epochs: the length of the learning-rate schedule. Epochs may differ by a step."""
        return sum(self.plan_epoch(epoch).num_steps for epoch in range(epochs))

    def _uses(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and lengths of the documents used in an epoch; the c-th further use of document d has id d + c D.

        Uses up to the end of epoch e are floor((e + 1) w + u) with a fixed random u in [0, 1): a source of weight 1/2
        shows half of its documents in every epoch and all of them in two.
        """
        num_documents = len(self.length_D)
        length_D = np.asarray(self.length_D, dtype=np.int64)
        if self.weight_D is None:
            return np.arange(num_documents, dtype=np.int64), length_D
        # 24 random bits: adding them to an epoch's number is exact, so a weight of 1 is one use in every epoch.
        phase_D = (self._random(_USES, 0, num_documents) >> np.uint64(40)).astype(np.float64) * 2.0**-24
        weight_D = np.asarray(self.weight_D, dtype=np.float64)
        uses_D = np.floor((epoch + 1) * weight_D + phase_D) - np.floor(epoch * weight_D + phase_D)
        uses_D = uses_D.astype(np.int64)
        document_O = np.repeat(np.arange(num_documents, dtype=np.int64), uses_D)
        copy_O = np.arange(len(document_O)) - np.repeat(np.cumsum(uses_D) - uses_D, uses_D)
        return document_O + copy_O * num_documents, length_D[document_O]

    def _mixed_by_length(self, length_O: np.ndarray, epoch: int) -> np.ndarray:
        """An order in which neighbours have similar lengths and are drawn anew every epoch.

        Sorted by length, documents stand on a line of tokens. Each moves to a random place among the documents whose
        length differs by at most 1/32, and within one pack at least, so that rare lengths find new company too.
        """
        num_documents = len(length_O)
        shuffled_O = np.argsort(self._random(_ORDER, epoch, num_documents), kind="stable")
        sorted_O = shuffled_O[np.argsort(length_O[shuffled_O], kind="stable")]
        length_O = length_O[sorted_O]
        spread_O = length_O // _LENGTH_SPREAD
        line_O = np.concatenate([[0], np.cumsum(length_O)])
        low_O = line_O[np.searchsorted(length_O, length_O - spread_O, side="left")]
        high_O = line_O[np.searchsorted(length_O, length_O + spread_O, side="right")]
        low_O = np.minimum(low_O, line_O[1:] - self.token_budget)
        high_O = np.maximum(high_O, line_O[1:] + self.token_budget)
        random_O = self._random(_MIX, epoch, num_documents)
        place_O = low_O + (random_O % (high_O - low_O + 1).astype(np.uint64)).astype(np.int64)
        return sorted_O[np.argsort(place_O, kind="stable")]

    def _random(self, purpose: int, epoch: int, count: int) -> np.ndarray:
        """``count`` random 64-bit numbers named by (seed, purpose, epoch); raw Philox output is fixed by definition."""
        # The topmost bits keep these keys apart from the anchors' (epoch, document).
        key = np.array([self.seed % (1 << 64), (0xFF << 56) | (purpose << 48) | epoch], dtype=np.uint64)
        return np.random.Philox(key=key).random_raw(count)


def _fill(length_O: np.ndarray, token_budget: int) -> np.ndarray:
    """Starts of packs of consecutive documents of at most ``token_budget`` tokens, and the total count at the end."""
    line_O = np.concatenate([[0], np.cumsum(length_O)])
    starts = [0]
    while starts[-1] < len(length_O):
        limit = line_O[starts[-1]] + token_budget
        starts.append(int(np.searchsorted(line_O, limit, side="right")) - 1)
    return np.array(starts, dtype=np.int64)


def _shuffle_packs(
    document_id_O: np.ndarray, start_P: np.ndarray, random_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    order_P = np.argsort(random_P, kind="stable")
    size_P = np.diff(start_P)
    place_O = np.repeat(np.argsort(order_P, kind="stable"), size_P)
    return document_id_O[np.argsort(place_O, kind="stable")], np.concatenate([[0], np.cumsum(size_P[order_P])])
