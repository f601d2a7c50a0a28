"""The whole configuration of a run: every section, and the rules that span several of them."""

from __future__ import annotations

from pydantic import Field, model_validator

from tp_dflash.config.anchors import AnchorsConfig
from tp_dflash.config.checkpoint import CheckpointConfig
from tp_dflash.config.data import DataConfig
from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.config.evaluation import EvaluationConfig
from tp_dflash.config.logging import LoggingConfig
from tp_dflash.config.objective import Objective
from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.config.placement import PlacementConfig
from tp_dflash.config.section import Section
from tp_dflash.config.target import TargetConfig
from tp_dflash.config.training import TrainingConfig


class RunConfig(Section):
    """One TOML file: a table for each section. Relative paths are seen from where the command is started."""

    target: TargetConfig = Field(description="The frozen model.")
    drafter: DrafterConfig = Field(description="The network that is trained, and its blocks.")
    data: DataConfig = Field(description="Training text and how it is packed.")
    anchors: AnchorsConfig = Field(AnchorsConfig(), description="How many blocks are drawn.")
    objective: Objective = Field(Objective(), description="The loss.")
    placement: PlacementConfig = Field(PlacementConfig(), description="Which GPU does what.")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Optimiser and schedule.")
    training: TrainingConfig = Field(TrainingConfig(), description="The course of the run.")
    checkpoint: CheckpointConfig = Field(CheckpointConfig(), description="Saving.")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="Speculative decoding with the result.")
    logging: LoggingConfig = Field(LoggingConfig(), description="What is written while the run goes on.")

    @model_validator(mode="after")
    def _chunks_hold_a_block(self) -> RunConfig:
        if self.training.head_chunk_rows < self.drafter.block_size:
            raise ValueError(
                f"training.head_chunk_rows: expected at least one block of {self.drafter.block_size} rows, got "
                f"{self.training.head_chunk_rows}; raise training.head_chunk_rows"
            )
        return self

    @model_validator(mode="after")
    def _anchors_are_tokens_of_a_pack(self) -> RunConfig:
        if self.anchors.per_pack >= self.data.token_budget:
            raise ValueError(
                f"anchors.per_pack: expected fewer anchors than the {self.data.token_budget} tokens of a pack, got "
                f"{self.anchors.per_pack}; lower anchors.per_pack or raise data.token_budget"
            )
        return self

    @model_validator(mode="after")
    def _offline_acceptance_needs_documents(self) -> RunConfig:
        if self.evaluation.offline_documents and not (self.data.validation or self.data.validation_fraction):
            raise ValueError(
                f"evaluation.offline_documents: expected validation documents to judge {self.evaluation.offline_documents} of, "
                "got none; set data.validation or data.validation_fraction"
            )
        if self.evaluation.offline_documents and not self.evaluation.prompts:
            raise ValueError(
                f"evaluation.offline_documents: expected prompts beside which {self.evaluation.offline_documents} documents are "
                "judged, got none; set evaluation.prompts"
            )
        return self
