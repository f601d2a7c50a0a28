"""What a drafter was trained as: kept beside the weights, so that a later look at the folder can be compared with it.

The published layouts have no place for this, and their fields can be edited; the record is a file of its own that no
loader reads. It travels unchanged through conversions from one layout to another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tp_dflash import __version__
from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.target_identity import TargetIdentity

RECORD_NAME = "tp_dflash.json"


@dataclass(frozen=True)
class TrainingRecord:
    """shape: as trained. digests: SHA-256 of every exported tensor. target: whom the drafter drafts for.

    recipe, data, results: plain JSON for the model card (run settings, sources of text, figures of an evaluation).
    """

    shape: DrafterShape
    digests: dict[str, str]
    target: TargetIdentity
    recipe: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    version: str = __version__

    def with_digests(self, tensors: Mapping[str, Tensor]) -> TrainingRecord:
        return replace(self, digests=tensor_digests(tensors))

    def write(self, folder: Path) -> None:
        (folder / RECORD_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> TrainingRecord | None:
        """The record in a folder, None if there is none; ValueError if it is not one."""
        path = folder / RECORD_NAME
        if not path.is_file():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            shape = fields.pop("shape")
            shape |= {name: tuple(shape[name]) for name in ("layer_types", "target_layer_ids")}
            target = fields.pop("target")
            target |= {"architectures": tuple(target["architectures"])}
            return TrainingRecord(shape=DrafterShape(**shape), target=TargetIdentity(**target), **fields)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: expected the record that an export writes, got {error!r}; export again or remove the file"
            ) from None


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes as a file holds them."""
    return {name: tensor_digest(tensors[name]) for name in sorted(tensors)}


def tensor_digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()
