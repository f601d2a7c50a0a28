"""A folder's config.json and the files beside it that people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tp_dflash.formats.model_card import model_card
from tp_dflash.formats.published_drafter import PublishedDrafter


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of a folder's config.json; ValueError if it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{path}: expected a drafter's config.json, got no such file; name a drafter's folder"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, got: {error}; export the drafter again") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(fields).__name__}; export the drafter again")
    return fields


def write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_about(folder: Path, drafter: PublishedDrafter) -> None:
    """The card and the record: what people, not loaders, read."""
    if drafter.record is not None:
        drafter.record.write(folder)
    (folder / "README.md").write_text(model_card(drafter), encoding="utf-8")
