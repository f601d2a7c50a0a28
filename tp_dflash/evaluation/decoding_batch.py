"""Prompts in flight: who is still being decoded, what was accepted, and each prompt's own randomness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tp_dflash.evaluation.answer import Answer
from tp_dflash.evaluation.draft_session import DraftSession
from tp_dflash.evaluation.draft_tree import DraftTree
from tp_dflash.evaluation.target_session import TargetSession

Noise = np.random.Generator


@dataclass
class DecodingBatch:
    """Prompts in flight. answers: all, in order; active and noise: those still being decoded, as the sessions hold them."""

    session: TargetSession
    drafts: DraftSession | None
    answers: list[Answer]
    active: list[Answer]
    noise: list[Noise]

    def last_tokens(self) -> Tensor:
        """The anchor of each active prompt: its newest token, which the target has not run on yet."""
        return torch.tensor([answer.tokens[-1] for answer in self.active])

    def ones(self) -> Tensor:
        return torch.ones(len(self.active), dtype=torch.int64)

    def accept(self, trees: Sequence[DraftTree], chosen_PQ: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Commit what the choices accept; rows of the pass to keep, padded to the longest path, and their count."""
        paths = []
        for answer, tree, chosen in zip(self.active, trees, chosen_PQ, strict=True):
            path = [0]
            while (child := tree.children.get((path[-1], chosen[path[-1]]))) is not None:
                path.append(child)
            answer.commit([chosen[node] for node in path], tree.expected_streak)
            paths.append(path)
        longest = max(map(len, paths))
        path_PJ = torch.arange(longest).repeat(len(paths), 1)
        for row, path in enumerate(paths):
            path_PJ[row, : len(path)] = torch.tensor(path)
        return path_PJ, torch.tensor([len(path) for path in paths])

    def extend(self, features_PQF: Tensor, path_PJ: Tensor, count_P: Tensor) -> None:
        """Give the drafter the features of the rows that were kept."""
        assert self.drafts is not None
        prompt_P1 = torch.arange(path_PJ.shape[0], device=features_PQF.device)[:, None]
        self.drafts.extend(features_PQF[prompt_P1, path_PJ.to(features_PQF.device)], count_P)

    def drop_finished(self) -> None:
        going = [place for place, answer in enumerate(self.active) if not answer.finished]
        if len(going) == len(self.active):
            return
        self.active = [self.active[place] for place in going]
        self.noise = [self.noise[place] for place in going]
        if going:
            prompts = torch.tensor(going)
            self.session.select(prompts)
            if self.drafts is not None:
                self.drafts.select(prompts)


def prompt_noise(seed: int, key: int) -> Noise:
    """A prompt's own stream of random numbers: counter-based, so that any two (seed, key) are unrelated."""
    return np.random.Generator(np.random.Philox(key=[seed, key]))


def uniform(noise: Sequence[Noise], count: int, device: torch.device) -> Tensor:
    """The next ``count`` numbers in [0, 1) of each prompt, (P, count), fp64."""
    return torch.from_numpy(np.stack([stream.random(count) for stream in noise])).to(device)
