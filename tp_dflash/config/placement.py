"""Which local GPUs play which role on every node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tp_dflash.config.section import Section

# A single GPU may be written as a number: drafter = 1 means "1".
GpuList = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class PlacementConfig(Section):
    """Local GPU numbers of each role, repeated on every node; on CPU machines they number the local ranks."""

    target: GpuList = Field(
        "colocated",
        description='GPUs that run the target, as "0-4" or "0,2"; "colocated": every drafter rank also hosts the target.',
    )
    drafter: GpuList = Field("0", description="GPUs that train the drafter; each brings its own packs.")
    head: GpuList | None = Field(
        None,
        description="GPUs that own a shard of the lm_heads. Those that are not drafter GPUs own a shard without a drafter "
        "copy. Default: the drafter GPUs.",
    )
    target_tensor_parallel: int = Field(
        1,
        ge=1,
        description="Target GPUs that hold one target together, for one that is too large for a GPU: its projections are split "
        "over each so many target GPUs in a row, and the first of them sends the features.",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="Drafter GPUs that share one copy of the lm_heads; further drafter GPUs repeat it data-parallel.",
    )
    drafter_shards: Literal["all", "node"] = Field(
        "all",
        description="Over which drafter GPUs the drafter's weights, gradients and moments are spread. all: those of all nodes "
        "(FSDP2). node: those of one node, and every node holds a copy (HSDP), which takes more memory and sends only each "
        "layer's gradient between nodes.",
    )
