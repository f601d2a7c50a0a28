"""When and how often checkpoints are saved, what becomes of a save that fails, and which checkpoint is the best so far.

In: the training state after a step. Out: sealed folders. One save is under way at a time; the next one waits for it. A save
that fails is reported on every rank and training goes on, because the older checkpoints still count; only where a save has
to succeed (the end, a stop) its failure ends the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.config.checkpoint import CheckpointConfig
from tp_dflash.training.checkpoint_folder import folder_name
from tp_dflash.training.save_job import SaveError, SaveJob, SaveRequest

_BEST = "best.json"


class CheckpointWriter:
    """Every drafter rank has one and calls it at the same steps."""

    def __init__(
        self,
        root: Path,
        config: CheckpointConfig,
        savers: ProcessGroup,
        is_first: bool,
        report: Callable[[str], None],
        first_step: int = 0,
    ) -> None:
        """report: called on every rank with the reason of a failed save. first_step: of the checkpoint gone on from."""
        self.root = root
        self.config = config
        self.savers = savers
        self.is_first = is_first
        self.report = report
        self.saved_step = first_step
        self._job: SaveJob | None = None
        self._kept()  # an unreadable record of the best one is an error now, not after the first save

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Begin to save the state after ``step`` steps; returns once it is copied (asynchronous) or on disk."""
        self.collect()
        request = SaveRequest(self.root, step, state, self.config.keep_last, self._kept())
        self._job = SaveJob(request, tensors, self.savers)
        if not self.config.asynchronous:
            self.collect()

    def collect(self) -> None:
        """Wait for the save under way; a failure is reported and forgotten."""
        try:
            self.finish()
        except SaveError as error:
            self.report(str(error))

    def finish(self) -> None:
        """Wait for the save under way; SaveError if it failed."""
        job, self._job = self._job, None
        if job is not None:
            job.wait()
            self.saved_step = job.request.step

    def note_acceptance(self, step: int, acceptance_length: float) -> None:
        """Keep the checkpoint of ``step`` from now on if no evaluated one was better. A step without one is passed over."""
        if not self.config.keep_best or not self.is_first or not (self.root / folder_name(step)).is_dir():
            return
        best = read_best(self.root)
        if best is None or acceptance_length > best[1]:
            partial = self.root / f".{_BEST}.partial"
            content = {"step": step, "acceptance_length": acceptance_length}
            partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
            os.replace(partial, self.root / _BEST)

    def _kept(self) -> frozenset[int]:
        best = read_best(self.root) if self.config.keep_best else None
        return frozenset() if best is None else frozenset({best[0]})


def read_best(root: Path) -> tuple[int, float] | None:
    """(step, acceptance length) of the best evaluated checkpoint; None if none was evaluated.

    ValueError if the record cannot be read: taken for none, the checkpoint that it names would be deleted as an old one.
    """
    try:
        text = (root / _BEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        return int(found["step"]), float(found["acceptance_length"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{root / _BEST}: expected the best checkpoint's step and acceptance_length, got {text[:80]!r}; correct the file, "
            "or remove it to forget which checkpoint was the best"
        ) from None
