"""Everything that the next step depends on, as named tensors; and how it is filled again on any number of drafter ranks.

In: the sharded drafter and its optimizer. On disk: safetensors that name each tensor (weights as ``drafter.*``, moments as
``moment1.*`` and ``moment2.*``), written rank by rank through torch.distributed.checkpoint, and JSON for the rest; nothing
in a checkpoint can run code. All ranks decide alike which folder to trust: one looks, the others are told.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.optim import AdamW

from tp_dflash.parallel.decision import decided_by_first
from tp_dflash.training.checkpoint_folder import CheckpointFolder, newest_complete


def training_tensors(drafter: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Names and (sharded) tensors of the training state; moments that do not exist yet are made as zeros."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in drafter.named_parameters():
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        tensors[f"drafter.{name}"] = parameter.detach()
        tensors[f"moment1.{name}"] = state["exp_avg"]
        tensors[f"moment2.{name}"] = state["exp_avg_sq"]
    return tensors


def load_training(folder: CheckpointFolder, drafter: nn.Module, optimizer: AdamW, drafters: ProcessGroup) -> None:
    """Fill weights, moments and step counts from a checkpoint written by any number of ranks."""
    tensors = training_tensors(drafter, optimizer)
    dcp.load(tensors, storage_reader=HuggingFaceStorageReader(path=str(folder.path)), process_group=drafters)
    updates = float(folder.state()["updates"])
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(tensors[f"drafter.{name}"])
            state = optimizer.state[parameter]
            state["exp_avg"], state["exp_avg_sq"] = tensors[f"moment1.{name}"], tensors[f"moment2.{name}"]
            state["step"] = torch.full((), updates, dtype=torch.float32, device=parameter.device)


def find_checkpoint(root: Path, group: ProcessGroup) -> tuple[CheckpointFolder | None, list[str]]:
    """The newest complete checkpoint and the lines about damaged ones, the same on every rank of ``group``."""
    return decided_by_first(lambda: newest_complete(root), group)
