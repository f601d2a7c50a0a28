"""What the drafter is trained towards: the blend of row losses, and how rows are weighted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tp_dflash.config.section import Section


class Objective(Section):
    """A non-negative blend of row losses.

    With z the drafter's logits, q = softmax(z), p = softmax(teacher logits / temperature), y the label and
    alpha = sum_v min(p, q), the loss of a row is the sum of each weight below times its term.
    """

    ce: float = Field(0.1, ge=0, description="Weight of the cross-entropy with the label, -log q(y).")
    kl: float = Field(0.9, ge=0, description="Weight of KL(p || q): the teacher as soft label.")
    reverse_kl: float = Field(0.0, ge=0, description="Weight of KL(q || p).")
    js: float = Field(0.0, ge=0, description="Weight of the Jensen-Shannon divergence of p and q.")
    tv: float = Field(0.0, ge=0, description="Weight of the total variation distance, 1 - alpha.")
    lk: float = Field(
        0.0,
        ge=0,
        description="Weight of lambda KL(p || q) + (1 - lambda) (1 - alpha) with lambda = exp(-3 alpha), detached, per row.",
    )
    nla: float = Field(0.0, ge=0, description="Weight of -log alpha.")
    cap: float = Field(
        0.0, ge=0, description="Weight of the entropy of q on rows whose argmax is the label (confidence penalty)."
    )
    temperature: float = Field(1.0, gt=0, description="The teacher's logits are divided by this.")
    weights: Literal["decay", "uniform", "dpace"] = Field(
        "decay",
        description="Row weights: exp(-(k-1)/gamma); 1; or the expected number of acceptances that rest on the row.",
    )
    gamma: float | None = Field(
        None, gt=0, description="Decay length in block positions; unset: the published one of the block size."
    )
    dpace_floor: float = Field(
        0.5, ge=0, le=1, description="The constant a in dpace's smoothed probability, (1 - a) q(y) + a."
    )

    @model_validator(mode="after")
    def _something_to_train(self) -> Objective:
        if not any((self.ce, self.kl, self.reverse_kl, self.js, self.tv, self.lk, self.nla, self.cap)):
            raise ValueError(
                "objective: expected at least one term with a weight above 0, got 0 for all; set objective.kl or "
                "objective.ce"
            )
        return self

    @property
    def exchanges_twice(self) -> bool:
        """Whether the gradient needs sums over the vocabulary that can only be formed once both LSEs are known."""
        return any((self.reverse_kl, self.js, self.tv, self.lk, self.nla, self.cap))
