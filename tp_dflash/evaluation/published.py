"""A published drafter's folder as evaluation needs it: the network, and its own head where it has one."""

from __future__ import annotations

from pathlib import Path

import torch

from tp_dflash.evaluation.draft_session import DraftHead
from tp_dflash.formats import PublishedDrafter, layout_of, read_speculators, read_zlab
from tp_dflash.formats.config_file import read_config
from tp_dflash.target import TargetFacts


def read_for_evaluation(
    folder: Path, facts: TargetFacts, device: torch.device
) -> tuple[PublishedDrafter, DraftHead | None]:
    """The drafter in a folder of either layout; the head only where it proposes a part of the target's vocabulary.

    A head over the whole vocabulary is a copy of the target's, so that the target's own serves.
    """
    if layout_of(read_config(folder), str(folder)) == "zlab":
        return read_zlab(folder), None
    drafter, matrices = read_speculators(folder, facts.num_layers)
    if matrices.vocabulary is None:
        return drafter, None
    return drafter, DraftHead(matrices.head_WD.to(device, facts.dtype), matrices.vocabulary.token_ids_W.to(device))
