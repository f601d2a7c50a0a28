"""The optimiser and its schedule."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tp_dflash.config.section import Section


class OptimizerConfig(Section):
    """AdamW or Muon on fp32 master weights, linear warm-up and cosine decay, clipping by the global gradient norm."""

    name: Literal["adamw", "muon"] = Field(
        "adamw",
        description="muon: matrices move along their orthogonalised momentum (scaled so that AdamW's learning rates serve), "
        "norm weights by AdamW. One moment a matrix instead of two.",
    )
    learning_rate: float = Field(6e-4, gt=0, description="Peak learning rate.")
    final_learning_rate_ratio: float = Field(
        0.0, ge=0, le=1, description="Learning rate at the last step over the peak."
    )
    warmup_ratio: float = Field(0.04, ge=0, lt=1, description="Share of all steps over which the rate rises linearly.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="Decay of AdamW's first and second moment.")
    momentum: float = Field(0.95, ge=0, lt=1, description="Decay of Muon's momentum (Nesterov).")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(
        0.0, ge=0, description="Decoupled weight decay of the matrices; norm weights have none."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="The gradient is scaled down to this global norm.")
