"""The base of every configuration section: frozen, strict about keys, one place for each default."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings that can be read but never changed; an unknown key is an error.

    Every field carries a description: the configuration reference in the docs is generated from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, validate_default=True)
