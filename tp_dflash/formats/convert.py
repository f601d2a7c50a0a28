"""A published drafter from one layout into the other, or into another dtype."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tp_dflash.config.target import TargetConfig
from tp_dflash.formats.config_file import read_config
from tp_dflash.formats.detect import Layout, layout_of
from tp_dflash.formats.published_drafter import DTYPES, PublishedDrafter
from tp_dflash.formats.speculators import read_speculators, write_speculators
from tp_dflash.formats.target_matrices import TargetMatrices
from tp_dflash.formats.zlab import read_zlab, write_zlab
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import TargetFacts, read_target_facts


def convert_published(
    source: Path, out: Path, layout: Layout, *, dtype: str | None = None, target: TargetConfig | None = None
) -> None:
    """Read ``source`` in whichever layout it has and write ``out``. dtype: None keeps that of the file.

    target: needed for the speculators layout (it carries the target's matrices) unless ``source`` has it already, and to
    read a speculators folder that does not say how deep the target is.
    """
    facts = None if target is None else read_target_facts(target)
    if layout_of(read_config(source), str(source)) == "zlab":
        drafter, matrices = read_zlab(source), None
    else:
        drafter, matrices = read_speculators(source, None if facts is None else facts.num_layers)
    if dtype is not None:
        drafter = drafter.converted(DTYPES[dtype])
    if layout == "zlab":
        write_zlab(out, drafter)
        return
    if target is not None and facts is not None:
        vocabulary = None if matrices is None else matrices.vocabulary
        _write_with_target(out, drafter, target, facts, vocabulary)
    elif matrices is not None:
        verifier = read_config(source).get("speculators_config", {}).get("verifier", {})
        name, architectures = verifier.get("name_or_path"), tuple(verifier.get("architectures") or ())
        write_speculators(out, drafter, _in_dtype(matrices, drafter), name, architectures)
    else:
        raise ValueError(
            f"{source}: expected the target, whose embedding and lm_head the speculators layout carries, got none; give "
            "--target"
        )


def _write_with_target(
    out: Path, drafter: PublishedDrafter, target: TargetConfig, facts: TargetFacts, vocabulary: DraftVocabulary | None
) -> None:
    matrices = TargetMatrices.read(target, facts, drafter.dtype, vocabulary)
    name = facts.name if drafter.record is None else drafter.record.target.name_or_path
    write_speculators(out, drafter, matrices, name, facts.architectures)


def _in_dtype(matrices: TargetMatrices, drafter: PublishedDrafter) -> TargetMatrices:
    return replace(
        matrices, embeddings_VD=matrices.embeddings_VD.to(drafter.dtype), head_WD=matrices.head_WD.to(drafter.dtype)
    )
