"""The frozen model and how it is run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from tp_dflash.config.section import Section


class TargetConfig(Section):
    """A Hugging Face model; only its text decoder is used, and its lm_head is read row by row by the drafter ranks."""

    path: str | None = Field(
        None, description="Folder with config.json and safetensors files, or a name on the Hugging Face hub."
    )
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Precision of the target's weights.")
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"] = Field(
        "sdpa", description="Attention implementation of transformers; sdpa runs causal flash attention on GPUs."
    )
    tokens_per_forward: int = Field(
        16384, ge=1, description="Most tokens (padding included) in one forward; a longer document runs alone."
    )
    forward_overhead_tokens: int = Field(
        256,
        ge=0,
        description="What one more forward costs, in tokens: the larger, the more padding is taken for fewer forwards.",
    )
    compile: bool = Field(False, description="Run each decoder layer through torch.compile.")
    trust_remote_code: bool = Field(False, description="Run model code that comes with the folder. Off: it is refused.")
    random_weights: bool = Field(
        False, description="Make the weights up (deterministic), from the configuration alone: for dry runs."
    )
    shape: dict[str, Any] = Field(
        {},
        description="Only with random_weights: fields of config.json that replace those of path, or, with a model_type, "
        "stand for all of it (path is then unset).",
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> TargetConfig:
        if self.shape and not self.random_weights:
            raise ValueError(
                f"shape: expected none for a target with weights, got {sorted(self.shape)}; remove target.shape or set "
                "target.random_weights = true"
            )
        if self.path and "model_type" in self.shape:
            raise ValueError(
                f"path: expected none beside a target.shape with a model_type, which makes a whole target up, got {self.path!r}; "
                "for the model itself --set target.random_weights=false --set 'target.shape={}', for its tokenizer alone "
                "data.tokenizer"
            )
        if not self.path and "model_type" not in self.shape:
            raise ValueError(
                "path: expected a model folder or name, got none; set target.path, or target.random_weights with a "
                "model_type in target.shape"
            )
        return self
