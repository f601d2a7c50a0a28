"""The configuration reference in the docs is that of this code, and every key is described."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from tp_dflash.config.reference import reference
from tp_dflash.config.run import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m tp_dflash.config.reference > docs/configuration.md"
    )


def _undescribed(section: type[BaseModel], path: str) -> list[str]:
    missing = []
    for name, field in section.model_fields.items():
        if not field.description:
            missing.append(f"{path}.{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            missing += _undescribed(field.annotation, f"{path}.{name}")
    return missing


def test_every_key_is_described() -> None:
    assert _undescribed(RunConfig, "config") == []
