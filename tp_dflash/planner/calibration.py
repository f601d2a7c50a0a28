"""What a kind of machine was measured to do: rates, bandwidths, and the memory that no tensor of ours accounts for.

``tp-dflash bench step`` writes such a file; without one the figures of an H200 that came out of it are used.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, ValidationError

from tp_dflash.config.section import Section


class Calibration(Section):
    """Achieved rates, in TFLOP/s of counted work and GB/s; memory in bytes."""

    gpu: str = Field("NVIDIA H200", description="The machine that was measured.")
    target_tflops: float = Field(500.0, gt=0, description="Target forward: matrix products and attention together.")
    drafter_tflops: float = Field(550.0, gt=0, description="Drafter's matrix products, forward and backward.")
    attention_tflops: float = Field(110.0, gt=0, description="Drafter's attention, forward and backward.")
    head_tflops: float = Field(570.0, gt=0, description="Sharded head loss: three products and the passes between.")
    memory_gb_per_s: float = Field(3600.0, gt=0, description="Elementwise passes and the optimizer.")
    node_gb_per_s: float = Field(300.0, gt=0, description="Collectives between GPUs of one node.")
    network_gb_per_s: float = Field(40.0, gt=0, description="Collectives between nodes, for each GPU.")
    step_overhead_ms: float = Field(20.0, ge=0, description="What a step costs beside its packs.")
    outside_bytes: int = Field(1_780_000_000, ge=0, description="CUDA context, libraries: outside the allocator.")
    communication_bytes: int = Field(400_000_000, ge=0, description="NCCL's buffers where a rank talks to others.")
    workspace_bytes: int = Field(
        100_000_000, ge=0, description="Inside the allocator: library workspaces, small tensors."
    )


def read_calibration(path: Path) -> Calibration:
    """A file of ``tp-dflash bench step``; ValueError that names the file if it is none."""
    try:
        return Calibration.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, ValidationError) as error:
        raise ValueError(
            f"{path}: expected a calibration file of `tp-dflash bench step`, got: {error}; write one on this machine"
        ) from None
