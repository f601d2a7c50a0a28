"""The course of a run: how long, with which numbers of rows at once, in which precision."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tp_dflash.config.section import Section


class TrainingConfig(Section):
    """Length, seed and precision of a run."""

    run_folder: str = Field("runs/default", description="Everything that a run writes lies in this folder.")
    epochs: int = Field(6, ge=1, description="Passes over the training documents.")
    max_steps: int | None = Field(
        None, ge=1, description="Stop (and end the schedule) after so many optimizer steps; unset: all epochs."
    )
    accumulation: int = Field(1, ge=1, description="Packs of each drafter rank in one optimizer step.")
    seed: int = Field(0, ge=0, description="Key of every random draw: anchors, packs, initial weights.")
    compute_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Precision of the drafter's matrix products; master weights are fp32 either way."
    )
    head_chunk_rows: int = Field(1024, ge=1, description="Block rows whose logits exist at once on a rank.")
    logits_precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="What logits are rounded to. bfloat16 takes half the memory and is wrong near convergence: at KL 0.002 "
        "the hidden gradient is off by 9.5% (fp32: 0.19%).",
    )
    max_bad_steps: int = Field(
        5,
        ge=1,
        description="Stop after so many steps in a row with a non-finite gradient; each is skipped and counted.",
    )
    timeout_seconds: float = Field(
        600.0, gt=0, description="Longest wait of any rank for another before the job ends with an error."
    )
