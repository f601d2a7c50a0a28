"""A batch of prompts on the target's side of decoding: its cache, its passes, and what each pass taps.

In: prompts, then drafted rows with their depth and visibility. Out: the target's own logits and the context features of
those rows. Nothing is final until ``keep``: rows that are not kept are as if they had never been seen.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from tp_dflash.evaluation.target_cache import TargetCache
from tp_dflash.target import Target


class TargetSession:
    """P prompts being decoded; build it, ``prefill``, then ``verify`` and ``keep`` in turn."""

    def __init__(self, target: Target, head_VD: Tensor, num_prompts: int, capacity: int) -> None:
        self.target = target
        self.head_VD = head_VD
        config = target.decoder.config
        assert isinstance(config, PreTrainedConfig)
        self.cache = TargetCache(config, num_prompts, capacity)
        parameters = inspect.signature(target.decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._last: tuple[Tensor, list[dict[str, Any]]] | None = None
        if self.cache.is_recurrent and num_prompts > 1:
            raise ValueError(
                f"expected one prompt at a time for a target with recurrent layers, got {num_prompts}; set "
                "evaluation.batch_size = 1"
            )

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Run all prompts; logits_PV after each prompt's last token, features_PSF right-padded, and their lengths.

        Padding stands behind every real token of its prompt, so plain causal attention never sees it.
        """
        length_P = torch.tensor([len(prompt) for prompt in prompts])
        tokens_PS = torch.zeros(len(prompts), int(length_P.max()), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            tokens_PS[row, : len(prompt)] = torch.tensor(prompt)
        hidden_PSD, features_PSF = self._run(tokens_PS)
        self.cache.keep(torch.arange(tokens_PS.shape[1]).expand_as(tokens_PS), length_P)
        last_P = (length_P - 1).to(hidden_PSD.device)
        last_PD = hidden_PSD[torch.arange(len(prompts), device=hidden_PSD.device), last_P]
        return self._logits(last_PD), features_PSF, length_P

    def verify(
        self, tokens_PQ: Tensor, depth_PQ: Tensor | None = None, visible_PQQ: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One pass over Q drafted rows a prompt: logits_PQV and features_PQF.

        Row q stands depth_PQ positions behind what is kept and sees the past and the rows that visible_PQQ says, itself
        included. Both left out: a chain, in which each row sees those before it.
        """
        states = self.cache.recurrent_states()
        if states and visible_PQQ is not None:
            raise ValueError(
                "expected a chain for a target with recurrent layers (their state has no branches), got a tree; unset "
                "evaluation.tree_budget"
            )
        hidden_PQD, features_PQF = self._run(tokens_PQ, depth_PQ, visible_PQQ)
        self._last = (tokens_PQ, states)
        return self._logits(hidden_PQD), features_PQF

    def keep(self, path_PJ: Tensor, count_P: Tensor) -> None:
        """Keep the first count_P rows of path_PJ (rows of the last pass, int64 on the CPU, from the anchor down)."""
        assert self._last is not None
        tokens_PQ, states = self._last
        if states and int(count_P[0]) < tokens_PQ.shape[1]:
            # A recurrent state holds what was refused too: go back to before the pass, and over the kept rows again.
            self.cache.restore(states)
            self._run(tokens_PQ[:, : int(count_P[0])])
        self.cache.keep(path_PJ, count_P)

    def select(self, prompts: Tensor) -> None:
        """Keep only these prompts (int64 indices), in this order: those that are still being decoded."""
        self.cache.select(prompts)

    def _run(
        self, tokens_PQ: Tensor, depth_PQ: Tensor | None = None, visible_PQQ: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        num_prompts, num_rows = tokens_PQ.shape
        self.cache.place(num_rows, self.target.device)
        arguments: dict[str, Any] = {self._cache_argument: self.cache, "use_cache": True}
        starting = not int(self.cache.length_P.max())
        if not starting:
            depth_PQ = torch.arange(num_rows).expand(num_prompts, -1) if depth_PQ is None else depth_PQ
            arguments["position_ids"] = (self.cache.length_P[:, None] + depth_PQ).to(self.target.device)
        # One prompt and one branch: the target's own causal mask does, as in any other decoding.
        if visible_PQQ is not None or (num_prompts > 1 and not starting):
            arguments["attention_mask"] = self._mask(arguments["position_ids"], visible_PQQ)
        features_PQF, hidden_PQD, _ = self.target.run(tokens_PQ, **arguments)
        return hidden_PQD, features_PQF

    def _mask(self, position_PQ: Tensor, visible_PQQ: Tensor | None) -> Any:
        """Masks (P, 1, Q, J) over the J cached rows, one a kind of attention layer, in the form the target takes them."""
        attention = self.target.config.attention
        if attention not in ("sdpa", "eager"):
            raise ValueError(
                f"expected target attention sdpa or eager for trees and several prompts, got {attention}; set "
                "target.attention"
            )
        masks = {
            "full_attention" if window is None else "sliding_attention": self._visible(position_PQ, visible_PQQ, window)
            for window in self.cache.windows
        }
        if len(masks) < len(self.cache.windows):
            raise ValueError(
                f"expected sliding layers of one window, got {self.cache.windows}; evaluate with batch_size = 1 and without "
                "trees"
            )
        if attention == "eager":
            dtype = self.target.facts.dtype
            masks = {
                kind: torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
                for kind, mask in masks.items()
            }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _visible(self, position_PQ: Tensor, visible_PQQ: Tensor | None, window: int | None) -> Tensor:
        num_rows = position_PQ.shape[1]
        device = position_PQ.device
        length_P11 = self.cache.length_P.to(device)[:, None, None]
        slot_J = torch.arange(self.cache.places.longest, device=device)
        drafted_PQJ = (slot_J - length_P11).expand(-1, num_rows, -1)
        if visible_PQQ is None:
            visible_PQQ = torch.ones(num_rows, num_rows, dtype=torch.bool).tril().expand(len(position_PQ), -1, -1)
        inside_PQJ = (drafted_PQJ >= 0) & (drafted_PQJ < num_rows)
        place_PQJ = drafted_PQJ.clamp(0, num_rows - 1)
        seen_PQJ = (drafted_PQJ < 0) | (inside_PQJ & visible_PQQ.to(device).gather(2, place_PQJ))
        if window is not None:
            drafted_position_PQJ = position_PQ[:, None].expand(-1, num_rows, -1).gather(2, place_PQJ)
            key_position_PQJ = torch.where(drafted_PQJ < 0, slot_J, drafted_position_PQJ)
            seen_PQJ &= key_position_PQJ > position_PQ[:, :, None] - window
        return seen_PQJ[:, None]

    def _logits(self, hidden: Tensor) -> Tensor:
        """The target's own logits, rounded as its lm_head rounds them, so that ties fall as they do in its own decoding."""
        return F.linear(hidden, self.head_VD)
