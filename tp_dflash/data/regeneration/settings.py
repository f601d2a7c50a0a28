"""How answers are sampled: kept with every answer, so that a data set says where its words came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingSettings:
    """None leaves a value to the server's or the model's own default. thinking: passed to the chat template."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int = 2048
    seed: int | None = None
    thinking: bool | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"expected at least one token an answer, got {self.max_tokens}; raise --max-tokens")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"expected a temperature of at least 0, got {self.temperature}; 0 is greedy")

    def to_json(self) -> dict[str, Any]:
        """What is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Chat template variables; both names that are in use."""
        return {} if self.thinking is None else {"enable_thinking": self.thinking, "thinking": self.thinking}
