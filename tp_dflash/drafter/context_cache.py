"""Keys and values of the context that a decoding drafter has seen, for several prompts at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tp_dflash.drafter.shape import DrafterShape

_GROWTH = 256


class ContextCache:
    """For each layer, keys and values (P, C, G, E) of P prompts, right-padded to a common capacity C.

    length_P: context rows of each prompt, int64 on the CPU. Row t of a prompt is its position t, so the next anchor
    stands at position length. Only known tokens of the target's own text enter, so nothing is ever taken back.
    """

    def __init__(self, shape: DrafterShape, num_prompts: int, device: torch.device) -> None:
        self.length_P = torch.zeros(num_prompts, dtype=torch.int64)
        # No dtype is known before the first rows come; until then there is nothing to hold.
        empty = torch.empty((num_prompts, 0, shape.num_kv_heads, shape.head_dim), device=device)
        self._keys = [empty for _ in range(shape.num_layers)]
        self._values = [empty for _ in range(shape.num_layers)]

    @property
    def num_prompts(self) -> int:
        return self.length_P.shape[0]

    @property
    def longest(self) -> int:
        return int(self.length_P.max()) if self.num_prompts else 0

    def layer(self, index: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, up to the longest prompt; rows past a prompt's length are zero."""
        longest = self.longest
        return self._keys[index][:, :longest].to(dtype), self._values[index][:, :longest].to(dtype)

    def write(self, index: int, keys_PSGE: Tensor, values_PSGE: Tensor, count_P: Tensor) -> None:
        """Put the first count_P of S new rows behind each prompt's own; ``advance`` then makes them count."""
        prompt, row = torch.nonzero(torch.arange(keys_PSGE.shape[1]) < count_P[:, None], as_tuple=True)
        place = self.length_P[prompt] + row
        for kept, new in ((self._keys, keys_PSGE), (self._values, values_PSGE)):
            kept[index] = _with_room(kept[index], int((self.length_P + count_P).max()), new.dtype)
            kept[index][prompt, place] = new[prompt, row]

    def advance(self, count_P: Tensor) -> None:
        self.length_P = self.length_P + count_P

    def select(self, prompts: Tensor) -> None:
        """Keep only these prompts (int64 indices), in this order: those that are still being decoded."""
        self.length_P = self.length_P[prompts]
        self._keys = [keys[prompts] for keys in self._keys]
        self._values = [values[prompts] for values in self._values]


def _with_room(kept: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    missing = rows - kept.shape[1]
    if missing <= 0:
        return kept
    room_shape = (kept.shape[0], max(missing, _GROWTH, kept.shape[1] // 2), *kept.shape[2:])
    return torch.cat([kept.to(dtype), kept.new_zeros(room_shape, dtype=dtype)], dim=1)
