"""Everything that the next step depends on, as named tensors; and how it is filled again on any number of drafter ranks.

In: the sharded drafter and its optimizer. On disk: safetensors that name each tensor (weights as ``drafter.*``, moments as
``moment1.*`` and, where AdamW steps them, ``moment2.*``), written rank by rank through torch.distributed.checkpoint, and JSON for the rest; nothing
in a checkpoint can run code. All ranks decide alike which folder to trust: one looks, the others are told.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import HuggingFaceStorageReader

from tp_dflash.parallel.decision import decided_by_first
from tp_dflash.training.checkpoint_folder import CheckpointFolder, newest_complete
from tp_dflash.training.optimizer import DrafterOptimizer


def training_tensors(drafter: nn.Module, optimizer: DrafterOptimizer) -> dict[str, Tensor]:
    """Names and (sharded) tensors of the training state; moments that do not exist yet are made as zeros."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in drafter.named_parameters():
        tensors[f"drafter.{name}"] = parameter.detach()
        tensors |= {f"{kind}.{name}": moment for kind, moment in optimizer.moments(parameter).items()}
    return tensors


def load_training(
    folder: CheckpointFolder, drafter: nn.Module, optimizer: DrafterOptimizer, drafters: ProcessGroup
) -> None:
    """Fill weights, moments and step counts from a checkpoint written by any number of ranks."""
    tensors = training_tensors(drafter, optimizer)
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(path=str(folder.path)), process_group=drafters)
    updates = float(folder.state()["updates"])
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(tensors[f"drafter.{name}"])
            moments = {kind: tensors[f"{kind}.{name}"] for kind in optimizer.moments(parameter)}
            optimizer.restore(parameter, moments, updates)


def find_checkpoint(root: Path, group: ProcessGroup) -> tuple[CheckpointFolder | None, list[str]]:
    """The newest complete checkpoint and the lines about damaged ones, the same on every rank of ``group``."""
    return decided_by_first(lambda: newest_complete(root), group)
