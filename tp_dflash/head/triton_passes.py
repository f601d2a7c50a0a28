"""The passes over a chunk's logits as Triton kernels: each reads the logits once, the gradient takes their place.

Comes in: logits in fp32 (bf16 in the fast mode) whose rows start at multiples of 64 elements. Goes out: as ``Passes`` says.
Runs on a GPU, and on the CPU in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from tp_dflash.config.objective import Objective
from tp_dflash.head.passes import ChunkLogits
from tp_dflash.head.row_coefficients import Coefficient
from tp_dflash.head.shard_statistics import Measured, Merged, Overlap, Shard
from tp_dflash.head.triton_gradient import gradient_kernel, overlap_kernel
from tp_dflash.head.triton_statistics import merge_kernel, statistics_kernel


@dataclass(frozen=True)
class KernelShape:
    """How a pass is spread: columns at once, warps, loads in flight, and how many programs share the rows (0: one each)."""

    block: int = 4096
    warps: int = 16
    stages: int = 1
    programs: int = 0

    def grid(self, num_rows: int) -> tuple[int]:
        return (min(num_rows, self.programs) if self.programs else num_rows,)

    def launch(self) -> dict[str, int]:
        return {"BLOCK": self.block, "STAGES": self.stages, "num_warps": self.warps}


@dataclass(frozen=True)
class TritonPasses:
    """``Passes`` in kernels. gradient_dtype: of the products' operands, never wider than the logits."""

    objective: Objective
    gradient_dtype: torch.dtype
    # Measured on H200 GPUs, 1,024 rows x 124,160: 3.7 and 3.6 TB/s of logits read and written.
    statistics_shape: KernelShape = KernelShape(4096, 16, 3)
    gradient_shape: KernelShape = KernelShape(4096, 32, 1)

    def statistics(self, logits: ChunkLogits) -> Tensor:
        z_Cv, t_Sv = logits.drafter_Cv, logits.teacher_Sv
        columns = z_Cv.new_empty((z_Cv.shape[0], Shard.WIDTH), dtype=torch.float32)
        statistics_kernel[self.statistics_shape.grid(z_Cv.shape[0])](
            z_Cv, t_Sv, logits.slot_C, logits.labels_C, columns,
            z_Cv.shape[0], z_Cv.shape[1], _padded(z_Cv), logits.vocab.start, z_Cv.stride(0), t_Sv.stride(0), logits.inverse_temperature,
            OUT_WIDTH=Shard.WIDTH, TEMPERED=logits.inverse_temperature != 1.0, **self.statistics_shape.launch(),
        )  # fmt: skip
        return columns

    def merge(self, gathered_RCS: Tensor) -> Tensor:
        num_ranks, num_rows, _ = gathered_RCS.shape
        merged = gathered_RCS.new_empty((num_rows, Merged.WIDTH))
        merge_kernel[(triton.cdiv(num_rows, 128),)](
            gathered_RCS, merged, num_rows,
            RANKS=num_ranks, IN_WIDTH=Shard.WIDTH, OUT_WIDTH=Merged.WIDTH, BLOCK=128, num_warps=4,
        )  # fmt: skip
        return merged

    def overlaps(self, logits: ChunkLogits, merged_CM: Tensor) -> Tensor:
        z_Cv, t_Sv = logits.drafter_Cv, logits.teacher_Sv
        columns = z_Cv.new_empty((z_Cv.shape[0], Overlap.WIDTH), dtype=torch.float32)
        overlap_kernel[self.statistics_shape.grid(z_Cv.shape[0])](
            z_Cv, t_Sv, logits.slot_C, merged_CM, columns,
            z_Cv.shape[0], z_Cv.shape[1], _padded(z_Cv), z_Cv.stride(0), t_Sv.stride(0), logits.inverse_temperature,
            MERGED_WIDTH=Merged.WIDTH, OUT_WIDTH=Overlap.WIDTH, TEMPERED=logits.inverse_temperature != 1.0,
            **self.statistics_shape.launch(),
        )  # fmt: skip
        return columns

    def gradient(self, logits: ChunkLogits, merged_CM: Tensor, coefficients_CK: Tensor | None) -> tuple[Tensor, Tensor]:
        z_Cv, t_Sv = logits.drafter_Cv, logits.teacher_Sv
        grad_Cv = z_Cv.view(self.gradient_dtype)[:, : z_Cv.shape[1]]
        measured = z_Cv.new_empty((z_Cv.shape[0], Measured.WIDTH), dtype=torch.float32)
        gradient_kernel[self.gradient_shape.grid(z_Cv.shape[0])](
            z_Cv, t_Sv, grad_Cv, logits.slot_C, logits.labels_C, merged_CM, coefficients_CK, measured,
            z_Cv.shape[0], z_Cv.shape[1], _padded(z_Cv), logits.vocab.start,
            z_Cv.stride(0), t_Sv.stride(0), grad_Cv.stride(0), logits.inverse_temperature,
            MERGED_WIDTH=Merged.WIDTH, COEFFICIENT_WIDTH=Coefficient.WIDTH, MEASURED_WIDTH=Measured.WIDTH,
            WITH_GRADIENT=coefficients_CK is not None,
            WITH_FORCE=self.objective.exchanges_twice, WITH_JS=self.objective.js > 0,
            TEMPERED=logits.inverse_temperature != 1.0,
            BLOCK=self.gradient_shape.block, num_warps=self.gradient_shape.warps,
        )  # fmt: skip
        return grad_Cv, measured


def _padded(logits_Cv: Tensor) -> int:
    """How long a row is in memory; an empty shard has no memory at all."""
    return logits_Cv.stride(0) if logits_Cv.shape[1] else 0
