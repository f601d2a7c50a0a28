"""The prepared data of a run: training and validation documents, and the report on how they came to be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tp_dflash.data.preparation_report import PreparationReport
from tp_dflash.data.store import TokenStore
from tp_dflash.data.store_writer import STORE_FILE, STORE_VERSION, TRAIN, VALIDATION


@dataclass(frozen=True, eq=False)
class DataSplits:
    """validation is None where none was asked for. fingerprint names files, tokenizer, template and options."""

    train: TokenStore
    validation: TokenStore | None
    report: PreparationReport
    fingerprint: str


def open_store(folder: Path) -> DataSplits:
    """Open what ``prepare_store`` completed, on any rank."""
    about = read_about(folder)
    if about is None:
        raise ValueError(f"expected prepared data in {folder}, got no complete folder; run tp-dflash prepare")
    train, validation = (
        TokenStore.open(folder, split, about["dtype"], tuple(about["files"])) for split in (TRAIN, VALIDATION)
    )
    return DataSplits(
        train=train,
        validation=validation if validation.num_documents else None,
        report=PreparationReport.from_json(about["report"]),
        fingerprint=about["fingerprint"],
    )


def read_about(folder: Path) -> dict[str, Any] | None:
    """The description of a prepared folder; None if it is not there, or of another version."""
    try:
        about = json.loads((folder / STORE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about if about.get("version") == STORE_VERSION else None
