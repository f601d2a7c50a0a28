"""Which prompts the drafter is judged on, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

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
    temperature: float = Field(0.0, ge=0, description="0: greedy. Above: sampled from softmax(logits / temperature).")
    acceptance: Literal["rejection", "match"] | None = Field(
        None,
        description="How sampled drafts are judged: drafts are drawn and go through rejection sampling, or the drafter's "
        "best tokens are kept while the target draws the same. Unset: rejection for chains, match for trees.",
    )
    tree_budget: int | None = Field(
        None, ge=1, le=1024, description="Nodes of the best-first draft tree; unset: a chain of the best tokens."
    )
    tree_stop: Literal["budget", "cost"] = Field(
        "budget",
        description="Trees grow to their budget, or only while one more node raises expected tokens per second; what a "
        "node costs is timed at the start.",
    )
    baseline_prompts: int | None = Field(
        8,
        ge=0,
        description="How many prompts of each set are also decoded without the drafter, for the ratio of speeds and, if "
        "greedy, to compare the outputs. Unset: all.",
    )
    seed: int = Field(0, ge=0, description="Seed of sampling; each prompt draws numbers of its own.")
    offline_documents: int = Field(
        0,
        ge=0,
        description="How many validation documents are also judged as they stand, without decoding: what the chain and "
        "trees of offline_tree_budgets would have accepted of them.",
    )
    offline_tree_budgets: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        [16, 64], description="Nodes of the trees that are judged on validation documents."
    )
    every_steps: int | None = Field(
        None, ge=1, description="Also evaluate while training, after so many steps; unset: never."
    )
    before_training: bool = Field(False, description="Also evaluate at step 0, so that a report can show the gain.")

    @model_validator(mode="after")
    def _trees_match(self) -> EvaluationConfig:
        if self.tree_budget is not None and self.acceptance == "rejection":
            raise ValueError(
                "acceptance: expected match for trees (their nodes are not drawn), got rejection; unset "
                "evaluation.acceptance or evaluation.tree_budget"
            )
        if self.tree_stop == "cost" and self.tree_budget is None:
            raise ValueError("tree_stop: expected a tree for the stop by cost, got a chain; set evaluation.tree_budget")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationConfig:
        names = [prompts.name for prompts in self.prompts]
        if len(set(names)) < len(names):
            raise ValueError(f"prompts: expected a name of its own for each set, got {names}; rename a set")
        return self
