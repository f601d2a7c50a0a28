"""A run's drafter section against its target, before anything is trained: the same findings as on a folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from tp_dflash.config.drafter import DrafterConfig
from tp_dflash.drafter import DrafterShape
from tp_dflash.formats.contract.field_checks import check_fields
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.folder_view import FolderView
from tp_dflash.formats.zlab import zlab_config
from tp_dflash.target import TargetFacts


def check_configuration(config: DrafterConfig, target: TargetFacts) -> Generator[Finding, None, DrafterShape | None]:
    """Findings on what an export of this run would say; returns the shape, None if the section does not fit the target."""
    try:
        shape = DrafterShape.of(config, target)
    except ValueError as error:
        yield Finding("drafter section", str(error), "correct the drafter section")
        return None
    fields = zlab_config(shape, "bfloat16")
    yield from check_fields(FolderView(Path(), "zlab", fields, fields, {}, None, {}), target)
    return shape
