"""The target's keys and values while it decodes several prompts of unequal length, and how drafts are taken back.

In: what the target's own attention layers hand to a Hugging Face cache. Out: a cache whose rows have lengths of their own:
drafted tokens are written behind each prompt's length and count only once they are kept. Works with any transformers
version from 5.17 on, because it never asks a cache to crop itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer


@dataclass
class Places:
    """Where the running forward writes: shared by all layers of a cache.

    length_P: kept rows of each prompt (int64, CPU). slot_PQ: row of each of Q new tokens, on the device. longest: rows of
    keys that the forward may see, the longest prompt's new ones included. capacity: rows that memory is held for.
    """

    length_P: Tensor
    slot_PQ: Tensor
    longest: int
    capacity: int


class AttentionRows(DynamicLayer):
    """Keys and values of one attention layer, (P, G, capacity, E); windows are left to the mask, so nothing is dropped."""

    def __init__(self, places: Places, window: int | None) -> None:
        super().__init__()
        self.places = places
        self.is_sliding = window is not None
        self.sliding_window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self.keys, self.values = (
            states.new_zeros(states.shape[0], states.shape[1], self.places.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write (P, G, Q, E) at the forward's places; return all rows up to the longest prompt's, kept or not."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_prompts, num_rows = key_states.shape[0], key_states.shape[2]
        prompt_P1 = torch.arange(num_prompts, device=key_states.device)[:, None]
        keys, values = self._kept()
        for kept, new in ((keys, key_states), (values, value_states)):
            if num_prompts == 1:
                kept[:, :, self.places.longest - num_rows : self.places.longest] = new
            else:
                kept[prompt_P1, :, self.places.slot_PQ] = new.transpose(1, 2)
        return keys[:, :, : self.places.longest], values[:, :, : self.places.longest]

    def get_seq_length(self) -> int:
        return int(self.places.length_P.max()) if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.places.longest, 0

    def move(self, source_PJ: Tensor, target_PJ: Tensor) -> None:
        """Copy rows source_PJ of each prompt onto its rows target_PJ; all are read before any is written."""
        prompt_P1 = torch.arange(source_PJ.shape[0], device=source_PJ.device)[:, None]
        for kept in self._kept():
            kept[prompt_P1, :, target_PJ] = kept[prompt_P1, :, source_PJ]

    def select(self, prompts: Tensor) -> None:
        self.keys, self.values = (kept[prompts] for kept in self._kept())

    def _kept(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values


class TargetCache(Cache):
    """A Hugging Face cache for decoding with drafts. Recurrent layers keep their states as transformers keeps them."""

    def __init__(self, text_config: PreTrainedConfig, num_prompts: int, capacity: int) -> None:
        self.places = Places(torch.zeros(num_prompts, dtype=torch.int64), torch.zeros(0, 0), 0, capacity)
        super().__init__(layers=[self._layer(layer) for layer in DynamicCache(config=text_config).layers])

    @property
    def length_P(self) -> Tensor:
        return self.places.length_P

    @property
    def windows(self) -> set[int | None]:
        """Window of each kind of attention layer; None stands for full attention."""
        return {layer.sliding_window for layer in self._attention}

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers carry a state that cannot be taken back, only restored as a whole."""
        return bool(self._recurrent)

    def place(self, num_rows: int, device: torch.device) -> None:
        """Announce a forward of ``num_rows`` tokens a prompt, to be written behind what each prompt has kept."""
        length_P = self.places.length_P
        self.places.slot_PQ = (length_P[:, None] + torch.arange(num_rows)).to(device)
        self.places.longest = int(length_P.max()) + num_rows
        if self.places.longest > self.places.capacity:
            raise ValueError(
                f"expected at most {self.places.capacity} cached tokens a prompt, got {self.places.longest}; make the cache "
                "for the longest prompt, its answer and one tree"
            )

    @torch.inference_mode()
    def keep(self, path_PJ: Tensor, count_P: Tensor) -> None:
        """Keep the first count_P of the rows path_PJ (places in the last forward, ascending) as each prompt's next ones."""
        if not torch.equal(path_PJ, torch.arange(path_PJ.shape[1]).expand_as(path_PJ)):
            base_P1 = self.places.length_P[:, None]
            target_PJ = base_P1 + torch.arange(path_PJ.shape[1])
            device = self.places.slot_PQ.device
            for layer in self._attention:
                layer.move((base_P1 + path_PJ).to(device), target_PJ.to(device))
        self.places.length_P = self.places.length_P + count_P

    @torch.inference_mode()
    def select(self, prompts: Tensor) -> None:
        """Keep only these prompts, in this order."""
        self.places.length_P = self.places.length_P[prompts]
        for layer in self._attention:
            layer.select(prompts)

    def recurrent_states(self) -> list[dict[str, Any]]:
        """Copies of what recurrent layers carry, for ``restore``."""
        return [{name: _copied(value) for name, value in vars(layer).items()} for layer in self._recurrent]

    def restore(self, states: list[dict[str, Any]]) -> None:
        for layer, state in zip(self._recurrent, states, strict=True):
            vars(layer).update({name: _copied(value) for name, value in state.items()})

    @property
    def _attention(self) -> list[AttentionRows]:
        return [layer for layer in self.layers if isinstance(layer, AttentionRows)]

    @property
    def _recurrent(self) -> list[LinearAttentionLayer]:
        return [layer for layer in self.layers if isinstance(layer, LinearAttentionLayer)]

    def _layer(self, layer: Any) -> Any:
        """What stands for the layer that transformers would use; by exact type, so that no unknown kind slips through."""
        if type(layer) is DynamicLayer:
            return AttentionRows(self.places, window=None)
        if type(layer) is DynamicSlidingWindowLayer:
            return AttentionRows(self.places, window=layer.sliding_window)
        if type(layer) is LinearAttentionLayer:
            return layer
        raise ValueError(
            f"expected full, sliding-window or linear attention layers in the target, got a cache of type "
            f"{type(layer).__name__}; evaluation cannot decode with this architecture"
        )


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
