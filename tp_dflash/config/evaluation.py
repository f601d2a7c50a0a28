"""Which prompts the drafter is judged on, and how."""

from __future__ import annotations

from pydantic import Field

from tp_dflash.config.section import Section


class PromptSetConfig(Section):
    """A named JSONL file of prompts: ``{"messages": [...]}`` (answers are ignored) or ``{"prompt": "..."}``."""

    name: str = Field(description="Name in tables, pictures and logs.")
    path: str = Field(description="JSONL file.")
    limit: int | None = Field(None, ge=1, description="Use only the first so many prompts.")


class EvaluationConfig(Section):
    """Speculative decoding with the target; acceptance length is a renewal average over real decoding."""

    prompts: list[PromptSetConfig] = Field([], description="Prompt sets, reported one by one.")
    max_new_tokens: int = Field(256, ge=1, description="Longest answer.")
    batch_size: int = Field(1, ge=1, description="Prompts decoded together.")
    temperature: float = Field(0.0, ge=0, description="0: greedy. Above: sampled, accepted by rejection sampling.")
    every_steps: int | None = Field(
        None, ge=1, description="Also evaluate while training, after so many steps; unset: never."
    )
    before_training: bool = Field(False, description="Also evaluate at step 0, so that a report can show the gain.")
