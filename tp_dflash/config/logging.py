"""What is written while a run goes on."""

from __future__ import annotations

from pydantic import Field

from tp_dflash.config.section import Section


class LoggingConfig(Section):
    """Progress, JSON lines, TensorBoard, Weights & Biases."""

    every_steps: int = Field(10, ge=1, description="Read the meters, and write a line, after so many optimizer steps.")
    wandb: str | None = Field(
        None, description="Project of Weights & Biases that gets the figures too (tp_dflash[wandb]); unset: none."
    )
    tensorboard: bool = Field(True, description="Also write the figures for TensorBoard into the run folder.")
