"""A drafter as others load it: its shape, its tensors under their published names, and what is told about its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tp_dflash.drafter import Drafter, DrafterShape, load_parameters, parameter_shapes
from tp_dflash.drafter.plan import Backend
from tp_dflash.formats.training_record import TrainingRecord

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, eq=False)
class PublishedDrafter:
    """tensors: every name of ``parameter_shapes(shape)``, all of one dtype, on the CPU. record: None for a foreign one."""

    shape: DrafterShape
    tensors: Mapping[str, Tensor]
    record: TrainingRecord | None = None

    def __post_init__(self) -> None:
        check_complete({name: tuple(tensor.shape) for name, tensor in self.tensors.items()}, self.shape)
        dtypes = {tensor.dtype for tensor in self.tensors.values()}
        if len(dtypes) != 1 or not dtypes <= set(DTYPES.values()):
            raise ValueError(
                f"expected all tensors in one of {', '.join(DTYPES)}, got {sorted(str(d) for d in dtypes)}; convert them"
            )

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors.values())).dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def converted(self, dtype: torch.dtype) -> PublishedDrafter:
        """The same drafter with its tensors (and the record's digests of them) in another dtype."""
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        record = None if self.record is None else self.record.with_digests(tensors)
        return PublishedDrafter(self.shape, tensors, record)

    def build(self, *, attention: Backend = "auto") -> Drafter:
        """The network with these weights, in their dtype, on the CPU."""
        drafter = Drafter(self.shape, attention=attention).to(self.dtype)
        load_parameters(drafter, self.tensors)
        return drafter


def check_complete(got: Mapping[str, tuple[int, ...]], shape: DrafterShape) -> None:
    """ValueError that lists every tensor that is missing, unexpected or of another shape than the drafter's."""
    expected = parameter_shapes(shape)
    faults = [f"{name} is missing" for name in sorted(expected.keys() - got.keys())]
    faults += [f"{name} is unexpected" for name in sorted(got.keys() - expected.keys())]
    faults += [
        f"{name} is {got[name]} in place of {expected[name]}"
        for name in sorted(expected.keys() & got.keys())
        if got[name] != expected[name]
    ]
    if faults:
        raise ValueError(
            f"expected the {len(expected)} tensors of a drafter of {shape.num_layers} layers, got: {'; '.join(faults)}; "
            "export the drafter again, or correct config.json"
        )
