"""Whether the run folder's disk has room for the checkpoints that the configuration keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

from tp_dflash.config.checkpoint import CheckpointConfig
from tp_dflash.drafter import DrafterShape

# fp32 weights and AdamW's two moments.
_BYTES_A_PARAMETER = 12


def check_space(folder: Path, shape: DrafterShape, config: CheckpointConfig) -> list[str]:
    """Lines of warning; ValueError if not even one checkpoint and the export fit on the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    one = shape.num_parameters * _BYTES_A_PARAMETER
    wanted = one * (config.keep_last + 1 + int(config.keep_best)) + shape.num_parameters * 4
    if free < one + shape.num_parameters * 4:
        raise ValueError(
            f"{folder}: expected room for a checkpoint of {one / 2**30:.2f} GiB, got {free / 2**30:.2f} GiB free; free some "
            "or choose another training.run_folder"
        )
    if free < wanted:
        return [
            f"{folder}: {free / 2**30:.1f} GiB free, but {wanted / 2**30:.1f} GiB may be needed for the kept checkpoints, one "
            "in writing and the export; lower checkpoint.keep_last or free some"
        ]
    return []
