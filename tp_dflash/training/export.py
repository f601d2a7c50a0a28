"""From a checkpoint on disk to a published folder, without a process group and without the target's decoder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from tp_dflash.config.load import parse_config
from tp_dflash.config.run import RunConfig
from tp_dflash.data import open_store, store_folder
from tp_dflash.drafter import DrafterShape, parameter_shapes
from tp_dflash.formats import (
    DTYPES,
    PublishedDrafter,
    TargetMatrices,
    write_speculators,
    write_zlab,
)
from tp_dflash.head import DraftVocabulary
from tp_dflash.target import TargetFacts, read_target_facts
from tp_dflash.training.checkpoint_folder import CheckpointFolder, find_fault, folder_name, newest_complete
from tp_dflash.training.publish import published_drafter
from tp_dflash.training.run_context import run_tokenizer
from tp_dflash.training.run_folder import RunFolder


def export_checkpoint(
    run: Path, out: Path, *, layout: str, dtype: str, step: int | None = None, draft_vocabulary: int | None = None
) -> Path:
    """Write the drafter of a run's checkpoint (the newest complete one, or that of ``step``); returns the checkpoint.

    draft_vocabulary: size of a reduced vocabulary, the tokens seen most often in the run's data and the end tokens.
    """
    if layout not in ("zlab", "speculators") or dtype not in DTYPES:
        raise ValueError(
            f"expected a layout of zlab or speculators in {', '.join(DTYPES)}, got {layout} in {dtype}; choose one of these"
        )
    if layout == "zlab" and draft_vocabulary is not None:
        raise ValueError(
            "expected a reduced vocabulary in the speculators layout, got zlab, which has no head to reduce; "
            "choose the other layout or keep the whole vocabulary"
        )
    config = read_run_config(run)
    drafter, checkpoint = read_checkpoint(run, config, dtype=dtype, step=step)
    if layout == "zlab":
        write_zlab(out, drafter)
    else:
        facts = read_target_facts(config.target)
        vocabulary = None if draft_vocabulary is None else frequent_tokens(config, facts, draft_vocabulary)
        write_speculators(out, drafter, TargetMatrices.read(config.target, facts, DTYPES[dtype], vocabulary))
    return checkpoint


def frequent_tokens(config: RunConfig, facts: TargetFacts, size: int) -> DraftVocabulary:
    """The vocabulary of ``size`` tokens that a run's prepared data uses most, its end tokens included."""
    folder = store_folder(config.data, run_tokenizer(config))
    counts_V = open_store(folder).train.token_counts(facts.vocab_size)
    return DraftVocabulary.most_frequent(torch.from_numpy(counts_V), size, facts.eos_token_ids)


def read_run_config(run: Path) -> RunConfig:
    """The configuration that a run's folder keeps; ConfigError if this version cannot read it."""
    path = RunFolder(run).settings
    return parse_config(json.loads(path.read_text(encoding="utf-8"))["config"], str(path))


def read_checkpoint(
    run: Path, config: RunConfig, *, dtype: str, step: int | None = None
) -> tuple[PublishedDrafter, Path]:
    """The drafter of a run's checkpoint (the newest complete one, or that of ``step``), and that checkpoint's folder."""
    folder = RunFolder(run)
    checkpoint = _checkpoint(folder, step)
    facts = read_target_facts(config.target)
    shape = DrafterShape.of(config.drafter, facts)
    tensors = {f"drafter.{name}": torch.empty(size) for name, size in parameter_shapes(shape).items()}
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(path=str(checkpoint.path)), no_dist=True)
    report = json.loads(folder.report.read_text(encoding="utf-8")) if folder.report.is_file() else {}
    drafter = published_drafter(
        config,
        facts,
        shape,
        None,
        {name.removeprefix("drafter."): tensor for name, tensor in tensors.items()},
        steps=checkpoint.step,
        results={key: value for key, value in report.items() if key.startswith("acceptance_")},
        dtype=dtype,
    )
    return drafter, checkpoint.path


def _checkpoint(folder: RunFolder, step: int | None) -> CheckpointFolder:
    if step is None:
        found, skipped = newest_complete(folder.checkpoints)
        if found is None:
            raise ValueError(f"{folder.checkpoints}: expected a complete checkpoint, got none {skipped}; train first")
        return found
    path = folder.checkpoints / folder_name(step)
    fault = find_fault(path)
    if fault is not None:
        raise ValueError(f"{path}: expected a complete checkpoint, got one where {fault}; choose another step")
    return CheckpointFolder(path, step)
