"""Training text: which files, how they become tokens and loss masks, and how large a pack is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from tp_dflash.config.section import Section


class SourceConfig(Section):
    """One source of documents. A bare string in the configuration is short for ``{path = "..."}``."""

    path: str = Field(
        description="A file (.jsonl, .json, .parquet, .arrow; also .gz, .bz2, .xz, .zst), a folder of them, a glob, a "
        "data set folder written by `datasets`, or the name of a data set on a hub."
    )
    weight: float = Field(
        1.0,
        gt=0,
        description="How often each document of this source is used in an epoch. 0.5: every other epoch, each epoch "
        "with other documents; 2.0: twice an epoch with other anchors.",
    )
    split: str = Field("train", description="Split of a data set folder or hub data set; files have none.")
    subset: str | None = Field(None, description="Configuration name of a hub data set.")


class TemplateConfig(Section):
    """How conversations are rendered and which of their words are supervised."""

    chat_template: str | None = Field(
        None, description="A Jinja file to use in place of the tokenizer's chat template; unset: the tokenizer's."
    )
    thinking: bool | None = Field(
        None,
        description="Passed to the template as enable_thinking and thinking. Set to false, reasoning in the data is "
        "left out as well; unset: the template's own default, reasoning is kept.",
    )
    arguments: dict[str, JsonValue] = Field({}, description="Further variables for the template.")
    turns: Literal["all", "last"] = Field("all", description="Assistant turns that are supervised.")
    pairs: Literal["chat", "raw"] = Field(
        "chat",
        description="Prompt and completion strings: one user and one assistant turn, or bare text one after the other.",
    )
    end_tokens: list[str] = Field(
        [],
        description="Tokens that end an assistant turn although the template prints them only in front of the next "
        "turn; needed for few templates.",
    )


def _as_sources(value: Any) -> Any:
    entries = value if isinstance(value, (list, tuple)) else [value]
    return [{"path": entry} if isinstance(entry, str) else entry for entry in entries]


Sources = Annotated[list[SourceConfig], BeforeValidator(_as_sources)]


class DataConfig(Section):
    """Sources, tokenisation and packs. One rank prepares; what it decided is read by all."""

    train: Sources = Field(min_length=1, description="Sources of training documents: a path, or a list of sources.")
    validation: Sources = Field([], description="Sources of validation documents; excludes validation_fraction.")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of the training documents, chosen by their content, kept for validation."
    )
    max_length: int = Field(3072, ge=2, description="Most tokens of a document.")
    over_length: Literal["truncate", "drop", "split"] = Field(
        "truncate", description="What becomes of longer documents: cut at the end, dropped, or cut into several."
    )
    token_budget: int = Field(8192, ge=2, description="T: most tokens of a pack, one drafter rank's micro-step.")
    tokenizer: str | None = Field(None, description="Folder or name of the tokenizer; unset: the target's.")
    template: TemplateConfig = Field(TemplateConfig(), description="Chat template and supervision.")
    strict: bool = Field(False, description="Stop at the first bad line; otherwise bad lines are skipped and listed.")
    num_workers: int | None = Field(
        None, ge=0, description="Processes that tokenise; 0: none besides the caller; unset: by cores and file sizes."
    )
    feature_cache: str | None = Field(
        None,
        description="Folder that `tp-dflash cache` wrote: drafter ranks read features there and no rank runs the target. "
        'Needs placement.target = "colocated".',
    )
    cache: str = Field("runs/data", description="Folder of prepared data sets, each under its fingerprint.")

    @model_validator(mode="after")
    def _fits(self) -> DataConfig:
        if self.max_length > self.token_budget:
            raise ValueError(
                f"expected max_length of at most token_budget, got {self.max_length} and {self.token_budget}; lower "
                "data.max_length or raise data.token_budget"
            )
        if self.validation and self.validation_fraction:
            raise ValueError(
                f"expected validation or validation_fraction, got both ({len(self.validation)} sources and "
                f"{self.validation_fraction}); remove one of the two"
            )
        return self
