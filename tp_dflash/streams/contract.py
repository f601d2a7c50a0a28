"""Both ends of every stream state their buffers before the first pack: what does not match is an error at the start.

In: the links of a rank. Out: nothing, or a StreamError on both sides that names the field. It is also the first message on
every link.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tp_dflash.streams.errors import StreamError
from tp_dflash.streams.link import Link, Tag
from tp_dflash.streams.payload import PayloadShapes


def agree_on_contract(links: Sequence[Link], shapes: PayloadShapes) -> None:
    """Exchange the shapes with every peer at once, so that no order of the ranks can block."""
    contract = _contract(shapes)
    mine = torch.tensor(list(contract.values()), dtype=torch.int64)
    posted = [(link.send(mine, Tag.CONTRACT), link.receive(torch.empty_like(mine), Tag.CONTRACT)) for link in links]
    for link, (sent, received) in zip(links, posted, strict=True):
        theirs = received.wait("its stream's contract").tolist()
        sent.wait("its stream's contract")
        differences = [
            f"{name} {here} here, {there} there"
            for (name, here), there in zip(contract.items(), theirs, strict=True)
            if here != there
        ]
        if differences:
            raise StreamError(
                f"{link.here} and {link.there} differ in {'; '.join(differences)}; start all ranks with one configuration"
            )


def _contract(shapes: PayloadShapes) -> dict[str, int]:
    return {
        "context rows": shapes.fixed.num_context,
        "blocks": shapes.fixed.num_blocks,
        "teacher rows": shapes.fixed.num_teacher_rows,
        "feature width": shapes.feature_size,
        "hidden width": shapes.hidden_size,
        "bytes a value": shapes.dtype.itemsize,
        "dtype": [torch.bfloat16, torch.float16, torch.float32, torch.float64].index(shapes.dtype),
    }
