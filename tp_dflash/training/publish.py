"""From trained tensors to a published drafter: shape, weights in the export's dtype, and the record of how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tp_dflash.config.load import dump_config
from tp_dflash.config.run import RunConfig
from tp_dflash.data import DataSplits
from tp_dflash.drafter import DrafterShape
from tp_dflash.formats import DTYPES, PublishedDrafter, TargetIdentity, TrainingRecord, tensor_digests
from tp_dflash.target import TargetFacts


def published_drafter(
    config: RunConfig,
    facts: TargetFacts,
    shape: DrafterShape,
    data: DataSplits | None,
    tensors: Mapping[str, Tensor],
    *,
    steps: int,
    results: Mapping[str, Any],
    dtype: str,
) -> PublishedDrafter:
    """A drafter ready to be written in any layout. tensors: by published name. results: figures for the model card."""
    converted = {name: tensor.to(DTYPES[dtype]).cpu().contiguous() for name, tensor in tensors.items()}
    settings = dump_config(config)
    recipe: dict[str, Any] = {"steps": steps}
    recipe |= {section: settings[section] for section in ("objective", "optimizer", "anchors", "training")}
    recipe["template"] = settings["data"]["template"]
    record = TrainingRecord(
        shape=shape,
        digests=tensor_digests(converted),
        target=TargetIdentity.of(config.target, facts),
        recipe=recipe,
        data=_about_data(data),
        results=dict(results),
    )
    return PublishedDrafter(shape, converted, record)


def _about_data(data: DataSplits | None) -> dict[str, Any]:
    if data is None:
        return {}
    store = data.train
    return {"documents": store.num_documents, "tokens": store.num_tokens, "files": list(store.files)}
