"""Made-up rows of an lm_head or an embedding table, the same whatever range of them is asked for.

In: a matrix name, a range of rows, a width. Out: normal numbers drawn block by block from generators keyed by (name,
block), so shards on different ranks (of one kind of device) fit together without any rank making the whole matrix.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

_BLOCK_ROWS = 1024
_STD = 0.02


def random_rows(name: str, start: int, stop: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows start..stop-1 of the made-up matrix ``name``, (stop - start, width), standard deviation 0.02."""
    rows = torch.empty(stop - start, width, dtype=dtype, device=device)
    for block in range(start // _BLOCK_ROWS, -(-stop // _BLOCK_ROWS)):
        first = block * _BLOCK_ROWS
        generator = torch.Generator(device=device).manual_seed(zlib.crc32(f"{name}/{block}".encode()))
        drawn = torch.empty(_BLOCK_ROWS, width, dtype=torch.float32, device=device).normal_(
            0, _STD, generator=generator
        )
        low, high = max(start, first), min(stop, first + _BLOCK_ROWS)
        rows[low - start : high - start] = drawn[low - first : high - first].to(dtype)
    return rows
