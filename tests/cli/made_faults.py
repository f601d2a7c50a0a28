"""Faults that a rank is made to meet, put into the running program from outside; each is a sentence, several end in semicolons."""

from __future__ import annotations

import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tp_dflash.blocks import BlockLayout, Document, FeatureBatch


def arrange(faults: str, rank: int) -> None:
    """Prepare this process for ``faults``; ValueError if nobody knows one."""
    for fault in faults.split("; "):
        _arrange(fault, rank)


def _arrange(fault: str, rank: int) -> None:
    if found := re.fullmatch(r"wait at step (\d+) for (.+)", fault):
        _at_step(int(found[1]), lambda: _wait_for(Path(found[2])))
    elif found := re.fullmatch(r"document (\d+) cannot be read on rank (\d+)", fault):
        if rank == int(found[2]):
            _lose_document(int(found[1]))
    elif found := re.fullmatch(r"raise on rank (\d+) at step (\d+)", fault):
        if rank == int(found[1]):
            _at_step(int(found[2]), lambda: _fail(int(found[2])))
    elif found := re.fullmatch(r"no file over (\d+) bytes", fault):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(found[1]), resource.RLIM_INFINITY))
    elif found := re.fullmatch(r"infinite loss on rank (\d+) at step (\d+|all)", fault):
        if rank == int(found[1]):
            _spoil_loss(found[2])
    elif found := re.fullmatch(r"nan features of document (\d+)", fault):
        _spoil_features(int(found[1]))
    elif found := re.fullmatch(r"nothing to train beyond document (-?\d+)", fault):
        _empty_masks(int(found[1]))
    elif found := re.fullmatch(r"out of memory on rank (\d+) at step (\d+)", fault):
        if rank == int(found[1]):
            _fill_memory(int(found[2]))
    else:
        raise ValueError(f"expected a known fault, got {fault!r}")


def _at_step(step: int, act: Callable[[], None]) -> None:
    from tp_dflash.training.course import Course

    original = Course.steps

    def steps(self: Course):
        for planned in original(self):
            if planned.index == step:
                act()
            yield planned

    Course.steps = steps  # type: ignore[method-assign]


def _fail(step: int) -> None:
    raise RuntimeError(f"made to fail at step {step}")


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def _lose_document(lost: int) -> None:
    from tp_dflash.data.store import TokenStore

    original = TokenStore.document

    def document(self: TokenStore, document_id: int) -> Document:
        if document_id == lost:
            raise OSError(f"made unreadable: document {lost}")
        return original(self, document_id)

    TokenStore.document = document  # type: ignore[method-assign]


def _spoil_loss(when: str) -> None:
    """The hidden rows that reach the loss carry one infinity."""
    from tp_dflash.training.drafter_step import DrafterStep

    original = DrafterStep.micro_step

    def micro_step(self: DrafterStep, layout: BlockLayout, features: FeatureBatch, *sizes: int) -> None:
        spoil = when == "all" or self.phase.step + 1 == int(when)
        hook = self.drafter.register_forward_hook(lambda _module, _args, hidden: hidden * torch.inf) if spoil else None
        original(self, layout, features, *sizes)
        if hook is not None:
            hook.remove()

    DrafterStep.micro_step = micro_step  # type: ignore[method-assign]


def _spoil_features(document_id: int) -> None:
    from tp_dflash.target import target

    original = target.empty_non_finite

    def empty_non_finite(layout: BlockLayout, batch: FeatureBatch) -> torch.Tensor:
        place = torch.tensor([document.document_id == document_id for document in layout.pack.documents])
        batch.features_TF[place[layout.pack.document_index_T]] = torch.nan
        return original(layout, batch)

    target.empty_non_finite = empty_non_finite


def _empty_masks(last: int) -> None:
    from tp_dflash.data.store import TokenStore

    original = TokenStore.document

    def document(self: TokenStore, document_id: int) -> Document:
        found = original(self, document_id)
        if document_id <= last:
            return found
        return Document(found.document_id, found.tokens_S, torch.zeros_like(found.loss_mask_S))

    TokenStore.document = document  # type: ignore[method-assign]


def _fill_memory(step: int) -> None:
    from tp_dflash.training import drafter_step

    original = drafter_step.DrafterStep.micro_step

    def micro_step(self: drafter_step.DrafterStep, *args: object) -> None:
        if self.phase.step + 1 == step:
            self.drafter.register_forward_pre_hook(_no_memory)
        original(self, *args)  # type: ignore[arg-type]

    drafter_step.DrafterStep.micro_step = micro_step  # type: ignore[method-assign]


def _no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
