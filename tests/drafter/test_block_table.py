"""The table of tiles made from intervals is the one that evaluating the mask gives."""

from __future__ import annotations

import pytest
import torch

from tests.drafter.small import mixed_case, small_shape
from tp_dflash.blocks import BlockGeometry, visible
from tp_dflash.drafter.block_table import TILE, seen_intervals, tiles

RULES = [(None, False), (None, True), (5, True), (5, False), (1, True), (1, False), (40, True), (10_000, False)]


def _seen(geometry: BlockGeometry, window: int | None, causal: bool) -> torch.Tensor:
    query = torch.arange(geometry.anchor_position_N.shape[0])[:, None]
    key = torch.arange(geometry.document_M.shape[0])[None]
    return visible(geometry, query, key, window=window, causal=causal)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("padding", [{}, {"num_context": 150, "num_blocks": 40}], ids=["exact", "padded"])
def test_intervals_hold_exactly_what_is_visible(rule: tuple[int | None, bool], padding: dict[str, int]) -> None:
    geometry = mixed_case(small_shape(), **padding).geometry
    start_N, stop_N, own_start_N, own_stop_N = seen_intervals(geometry, window=rule[0], causal=rule[1])
    key = torch.arange(geometry.document_M.shape[0])[None]
    within = (key >= start_N[:, None]) & (key < stop_N[:, None])
    within |= (key >= own_start_N[:, None]) & (key < own_stop_N[:, None])
    assert torch.equal(within, _seen(geometry, *rule))


def _long_documents(num_context: int | None, num_blocks: int | None) -> BlockGeometry:
    """Documents of several tiles, so that whole tiles occur; 60 blocks of 24."""
    lengths = torch.tensor([700, 130, 1000, 5, 390])
    document_T = torch.repeat_interleave(torch.arange(5), lengths)
    position_T = torch.cat([torch.arange(length) for length in lengths.tolist()])
    anchor_A = torch.randperm(len(document_T), generator=torch.Generator().manual_seed(1))[:60].sort().values
    return BlockGeometry.build(
        document_T, position_T, document_T[anchor_A], position_T[anchor_A], 24, num_context, num_blocks
    )


@pytest.mark.parametrize("rule", [*RULES, (300, True)], ids=str)
@pytest.mark.parametrize("padding", [(None, None), (2304, 64)], ids=["exact", "padded"])
def test_tiles_are_those_of_the_evaluated_mask(
    rule: tuple[int | None, bool], padding: tuple[int | None, int | None]
) -> None:
    geometry = _long_documents(*padding)
    seen = _seen(geometry, *rule)
    missing = [-size % TILE for size in seen.shape]
    padded = torch.nn.functional.pad(seen, (0, missing[1], 0, missing[0]))
    tiled = padded.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE))
    some, every = tiles(geometry, window=rule[0], causal=rule[1])
    assert torch.equal(some, tiled.any(dim=3).any(dim=1))
    assert torch.equal(every, tiled.all(dim=3).all(dim=1))
    if rule == (None, False):
        assert every.any()
