"""Everything about a drafter's folder that can be compared without a server, one finding a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tp_dflash.config.target import TargetConfig
from tp_dflash.formats.contract.field_checks import check_fields
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.contract.target_checks import check_carried_matrices, check_target_identity, check_thinking
from tp_dflash.formats.contract.weight_checks import check_weights
from tp_dflash.formats.weights import read_weights
from tp_dflash.target import Target, TargetFacts, check_target


def check_folder(folder: Path, config: TargetConfig, facts: TargetFacts) -> Iterator[Finding]:
    """Compare a published folder with its record, its target's files and what servers read; no model is run.

    ValueError only if the folder holds no drafter at all; everything else is a finding.
    """
    view = FolderView.read(folder)
    tensors = read_weights(folder)
    yield from check_fields(view, facts)
    yield from check_weights(view, {name: tensors[name] for name in view.body})
    yield from check_target_identity(view, config, facts)
    if view.layout == "speculators":
        yield from check_carried_matrices(tensors, config, facts)
    thinking = check_thinking(view, config)
    if thinking is not None:
        yield thinking


def check_running_target(target: Target) -> Iterator[Finding]:
    """Run the target on a few tokens: its teacher rows must give its own logits, so that its norm was applied once."""
    try:
        found = check_target(target, target.facts.vocab_size)
    except ValueError as error:
        yield Finding("teacher rows", str(error), "this target cannot be drafted for by this package")
        return
    yield Finding(
        "teacher rows",
        f"{found.same_top1} of {found.num_tokens} top-1 tokens are the target's own",
        None if found.same_top1 == found.num_tokens else "this target cannot be drafted for by this package",
    )
    yield Finding("final norm", f"applied once: logits differ by at most {found.logits:.2g} from the target's own")
    yield Finding("embeddings", f"rows of the file are the model's own, largest difference {found.embeddings:.2g}")
