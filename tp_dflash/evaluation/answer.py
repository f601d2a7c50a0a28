"""What one prompt was answered with, and how its blocks fared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class Answer:
    """An answer in the making. stop_tokens end it and belong to it; it is never longer than ``max_new_tokens``.

    streaks: for every block, committed tokens minus one, which is the accepted drafted tokens. A block that a stop token
    cuts counts what it committed up to and including that token; a block cut by ``max_new_tokens`` counts whole, since
    that end is none of the drafter's doing. accepted, expected: accepted drafted tokens before any cut, and what the
    drafter itself expected, both summed over the blocks.
    """

    stop_tokens: Collection[int]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    streaks: list[int] = field(default_factory=list)
    accepted: int = 0
    expected: float = 0.0
    finished: bool = False

    def add(self, token: int) -> None:
        """One token that no block gave: the first, from the prompt's own pass, and all of plain decoding."""
        self._append([token])

    def commit(self, tokens: Sequence[int], expected_streak: float) -> None:
        """One block's outcome: its accepted drafted tokens and the bonus token."""
        self.accepted += len(tokens) - 1
        self.expected += expected_streak
        self.streaks.append(self._append(tokens) - 1)

    def _append(self, tokens: Sequence[int]) -> int:
        """Append up to the first stop token; how many of ``tokens`` that were, the limit apart."""
        stops = [place for place, token in enumerate(tokens) if token in self.stop_tokens]
        kept = tokens[: stops[0] + 1] if stops else tokens
        self.tokens.extend(kept[: self.max_new_tokens - len(self.tokens)])
        self.finished = bool(stops) or len(self.tokens) >= self.max_new_tokens
        return len(kept)
