"""How many blocks are drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tp_dflash.config.section import Section


class AnchorsConfig(Section):
    """Caps on the anchors of a pack (fixed shape: unfilled anchors are padding) and of a document."""

    per_pack: int = Field(
        512, ge=1, description="A: blocks of one pack; the anchors with the lowest random priorities stay."
    )
    per_document: int | None = Field(None, ge=1, description="At most so many anchors of one document; unset: no cap.")
    draw: Literal["random", "grid"] = Field(
        "random",
        description="Which tokens may be anchors: all supervised ones, drawn anew every epoch; or a grid, every B-th token "
        "of each supervised stretch, so that blocks tile it and are the same in every epoch (for comparison).",
    )
