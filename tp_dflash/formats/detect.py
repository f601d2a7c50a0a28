"""Which layout a published drafter's folder has, and reading it whatever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from tp_dflash.formats.config_file import read_config
from tp_dflash.formats.published_drafter import PublishedDrafter
from tp_dflash.formats.speculators import read_speculators
from tp_dflash.formats.zlab import read_zlab

Layout = Literal["zlab", "speculators"]


def layout_of(config: dict[str, Any], source: str) -> Layout:
    """By the fields of config.json; ValueError if it is no DFlash drafter."""
    if config.get("speculators_model_type") == "dflash":
        return "speculators"
    if "dflash_config" in config:
        return "zlab"
    raise ValueError(
        f"{source}: expected dflash_config or speculators_model_type = dflash in config.json, got neither; name the folder "
        "of a published DFlash drafter"
    )


def read_published(folder: Path, num_target_layers: int | None = None) -> PublishedDrafter:
    """Read a drafter of either layout (from speculators without the target's matrices)."""
    if layout_of(read_config(folder), str(folder)) == "zlab":
        return read_zlab(folder)
    return read_speculators(folder, num_target_layers)[0]
