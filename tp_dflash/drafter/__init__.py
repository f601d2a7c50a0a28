"""The drafter: context features and block embeddings in, hidden rows out; the network, its attention backends, its cache.

Never imports the target or the data; every backend's visibility comes from ``tp_dflash.blocks.visible``.
"""

from tp_dflash.drafter.context_cache import ContextCache
from tp_dflash.drafter.drafter import Drafter
from tp_dflash.drafter.layer import DrafterLayer
from tp_dflash.drafter.layer_ids import default_layer_ids, resolve_layer_ids
from tp_dflash.drafter.mask_token import check_mask_token
from tp_dflash.drafter.parameters import load_parameters, parameter_shapes
from tp_dflash.drafter.plan import AttentionPlan
from tp_dflash.drafter.shape import DrafterShape, TargetSizes

__all__ = [
    "AttentionPlan",
    "ContextCache",
    "Drafter",
    "DrafterLayer",
    "DrafterShape",
    "TargetSizes",
    "check_mask_token",
    "default_layer_ids",
    "load_parameters",
    "parameter_shapes",
    "resolve_layer_ids",
]
