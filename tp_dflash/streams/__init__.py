"""Carry features from target ranks to drafter ranks, hand them over inside a rank that is both, or read them from files.

In: layouts in plan order, process groups of two ranks each. Out: feature batches, in the same order. This room knows shapes
and dtypes; what features mean is none of its business.
"""

from tp_dflash.streams.cache import CachedFeatures
from tp_dflash.streams.cache_writer import FeatureCacheWriter
from tp_dflash.streams.errors import DrafterFailed, PeerLost, StreamError, TargetFailed
from tp_dflash.streams.local import LocalFeatures
from tp_dflash.streams.meters import StreamMeters, bottleneck
from tp_dflash.streams.payload import PayloadShapes
from tp_dflash.streams.receiver import FeatureReceiver
from tp_dflash.streams.sender import PACKS_IN_FLIGHT, FeatureSender

__all__ = [
    "PACKS_IN_FLIGHT",
    "CachedFeatures",
    "DrafterFailed",
    "FeatureCacheWriter",
    "FeatureReceiver",
    "FeatureSender",
    "LocalFeatures",
    "PayloadShapes",
    "PeerLost",
    "StreamError",
    "StreamMeters",
    "TargetFailed",
    "bottleneck",
]
