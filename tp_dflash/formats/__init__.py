"""Published checkpoint layouts in and out, and the contract between a drafter's folder, its target and its server.

In: a drafter's shape and tensors, or a folder. Out: a folder, or a drafter; findings of a check. Knows nothing of
training: a run's weights come in as plain tensors.
"""

from tp_dflash.formats.convert import convert_published
from tp_dflash.formats.detect import layout_of, read_published
from tp_dflash.formats.published_drafter import DTYPES, PublishedDrafter
from tp_dflash.formats.speculators import read_speculators, write_speculators
from tp_dflash.formats.starting_tensors import starting_tensors
from tp_dflash.formats.target_identity import TargetIdentity
from tp_dflash.formats.target_matrices import TargetMatrices
from tp_dflash.formats.training_record import TrainingRecord, tensor_digests
from tp_dflash.formats.zlab import read_zlab, write_zlab

__all__ = [
    "DTYPES",
    "PublishedDrafter",
    "TargetIdentity",
    "TargetMatrices",
    "TrainingRecord",
    "convert_published",
    "layout_of",
    "read_published",
    "read_speculators",
    "read_zlab",
    "starting_tensors",
    "tensor_digests",
    "write_speculators",
    "write_zlab",
]
