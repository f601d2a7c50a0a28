"""Which documents were in a step that was skipped, and which were dropped: kept without waiting for the device.

In: after each step, device scalars and flags beside the ids of this rank's documents. Out: at the next reading of the
meters, names. Only when a count says that something happened does anyone look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.blocks import BlockLayout, FeatureBatch

_MOST_NAMED = 50


@dataclass(frozen=True)
class SkippedStep:
    """A step whose gradient was not finite. documents: of the packs whose own loss was not finite, else of all packs."""

    step: int
    documents: tuple[int, ...]


@dataclass(eq=False)
class _Pack:
    document_ids: tuple[int, ...]
    loss_bad: Tensor
    finite_documents: Tensor | None


@dataclass(eq=False)
class Trouble:
    """Of the steps since the last reading, on one drafter rank."""

    _open: list[_Pack] = field(default_factory=list)
    _steps: list[tuple[int, list[_Pack], Tensor]] = field(default_factory=list)
    _packs: list[_Pack] = field(default_factory=list)

    def add_pack(self, layout: BlockLayout, features: FeatureBatch, loss_sum: Tensor) -> None:
        """A pack of the step in progress, and its summed loss."""
        flags = features.finite_documents
        pack = _Pack(
            tuple(document.document_id for document in layout.pack.documents),
            ~torch.isfinite(loss_sum.detach()),
            None if flags is None else flags.clone(),
        )
        self._open.append(pack)
        self._packs.append(pack)

    def end_step(self, step: int, bad: Tensor | None) -> None:
        """``bad``: 1.0 on the device where the step was skipped; None for a step without rows."""
        if bad is not None:
            self._steps.append((step, self._open, bad.detach()))
        self._open = []

    def read(self, any_skipped: bool, group: ProcessGroup, device: torch.device) -> tuple[list[SkippedStep], list[int]]:
        """(skipped steps with documents of all ranks, documents dropped on all ranks); starts anew.

        any_skipped: whether a step was skipped anywhere, the same on every rank. all-reduce of a number; all-gather
        of objects only where something happened; no adjoint.
        """
        dropped = sorted({name for pack in self._packs for name in _dropped(pack)})
        count = torch.tensor([len(dropped)], device=device)
        dist.all_reduce(count, group=group)
        mine = _named(self._steps) if any_skipped else []
        self._steps, self._packs = [], []
        if not any_skipped and not int(count):
            return [], []
        everyone: list[tuple[list[tuple[int, bool, tuple[int, ...]]], list[int]]] = [([], [])] * dist.get_world_size(
            group
        )
        dist.all_gather_object(everyone, (mine, dropped), group=group)
        return _joined([entry for rank, _ in everyone for entry in rank]), [
            name for _, names in everyone for name in names
        ]


def _dropped(pack: _Pack) -> list[int]:
    if pack.finite_documents is None:
        return []
    flags = pack.finite_documents.tolist()
    return [name for name, finite in zip(pack.document_ids, flags, strict=False) if not finite]


def _named(steps: list[tuple[int, list[_Pack], Tensor]]) -> list[tuple[int, bool, tuple[int, ...]]]:
    """(step, whether these documents' own loss was not finite, documents) of the skipped steps."""
    named = []
    for step, packs, bad in steps:
        if float(bad):
            culprits = [pack for pack in packs if bool(pack.loss_bad)]
            chosen = culprits or packs
            named.append((step, bool(culprits), tuple(name for pack in chosen for name in pack.document_ids)))
    return named


def _joined(entries: list[tuple[int, bool, tuple[int, ...]]]) -> list[SkippedStep]:
    skipped = []
    for step in sorted({entry[0] for entry in entries}):
        of_step = [entry for entry in entries if entry[0] == step]
        culprits = [entry for entry in of_step if entry[1]] or of_step
        skipped.append(SkippedStep(step, tuple(sorted(name for entry in culprits for name in entry[2]))[:_MOST_NAMED]))
    return skipped
