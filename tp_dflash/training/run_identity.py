"""By what a checkpoint is known to belong to a run: everything that decides what a parameter means and which packs are left.

In: settings, the target's facts, the prepared data. Out: one digest. Paths do not count, so that a run folder may move with
its model and data; their contents do.
"""

from __future__ import annotations

import hashlib
import json

from tp_dflash.config.load import dump_config
from tp_dflash.config.run import RunConfig
from tp_dflash.data import DataSplits
from tp_dflash.formats import TargetIdentity
from tp_dflash.target import TargetFacts

# How the drafter is computed or was started, not what it is.
_FREE_DRAFTER_SETTINGS = frozenset({"attention", "activation_checkpointing", "compile", "init_from", "init_std"})


def run_identity(config: RunConfig, facts: TargetFacts, data: DataSplits) -> str:
    """SHA-256 over drafter, anchors, optimiser, seed, pack size, the target's sizes and head, and the documents' lengths and weights."""
    settings = dump_config(config)
    target = TargetIdentity.of(config.target, facts)
    deciding = {
        "drafter": {key: value for key, value in settings["drafter"].items() if key not in _FREE_DRAFTER_SETTINGS},
        "anchors": settings["anchors"],
        "optimizer": settings["optimizer"]["name"],
        "seed": settings["training"]["seed"],
        "token_budget": settings["data"]["token_budget"],
        "target": [target.vocab_size, target.hidden_size, target.num_layers, target.head],
        "documents": _documents(data),
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def _documents(data: DataSplits) -> str:
    """Of the training documents in their order. Token ids are not read: that would cost a pass over all data at each start."""
    digest = hashlib.sha256(data.train.length_D.tobytes())
    digest.update(data.train.weight_D.tobytes())
    return digest.hexdigest()
