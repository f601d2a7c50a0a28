"""What a DFlash block is: anchors, labels, weights and visibility, as pure functions of tokens and loss masks.

In: documents (token ids and loss masks). Out: the nouns that travel between the rooms. Nothing here knows of process
groups, models or files, so both the target side and the drafter side can compute the same layout for the same pack.
"""

from tp_dflash.blocks.anchors import AnchorCaps, eligible_anchors, sample_anchors
from tp_dflash.blocks.block_batch import BlockBatch, FixedShapes
from tp_dflash.blocks.document import Document
from tp_dflash.blocks.feature_batch import FeatureBatch
from tp_dflash.blocks.geometry import BlockGeometry
from tp_dflash.blocks.layout import BlockLayout
from tp_dflash.blocks.pack import Pack
from tp_dflash.blocks.visibility import visible
from tp_dflash.blocks.weights import block_position_weights, default_gamma

__all__ = [
    "AnchorCaps",
    "BlockBatch",
    "BlockGeometry",
    "BlockLayout",
    "Document",
    "FeatureBatch",
    "FixedShapes",
    "Pack",
    "block_position_weights",
    "default_gamma",
    "eligible_anchors",
    "sample_anchors",
    "visible",
]
