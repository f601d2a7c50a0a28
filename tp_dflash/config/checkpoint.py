"""When the state of a run is saved and how much of it is kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tp_dflash.config.section import Section


class CheckpointConfig(Section):
    """Saving of everything that the next step depends on."""

    every_steps: int = Field(
        500, ge=1, description="Save after so many optimizer steps; the last step is always saved."
    )
    export_dtype: Literal["bfloat16", "float16", "float32"] = Field(
        "bfloat16", description="Precision of the weights in the exported folder."
    )
    asynchronous: bool = Field(
        True, description="Write in the background while training goes on; off: training waits for the disk."
    )
    keep_best: bool = Field(
        True, description="Also keep the evaluated checkpoint with the longest acceptance, however old it is."
    )
    keep_last: int = Field(2, ge=1, description="Newest complete checkpoints that are kept.")
