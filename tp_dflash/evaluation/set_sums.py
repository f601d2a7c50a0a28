"""What decoding one prompt set adds up to: sums and counts only, so that ranks and batches cannot show.

In: answers and seconds. Out: one vector that ranks add, and the sums again; ratios are taken by the report, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash.evaluation.answer import Answer
from tp_dflash.evaluation.stopwatch import Stopwatch
from tp_dflash.evaluation.streaks import StreakTally


@dataclass(frozen=True)
class SetSums:
    """Sums over prompts. tokens: generated after the first, which the prompt's own pass gives.

    accepted, expected: accepted drafted tokens before any cut, and the drafter's own expectation of them. compared_*: the
    prompts that were also decoded plainly; identical: of those, the answers that are equal, token for token.
    """

    tally: StreakTally
    prompts: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    expected: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rest_seconds: float = 0.0
    compared_prompts: float = 0.0
    compared_tokens: float = 0.0
    compared_seconds: float = 0.0
    plain_tokens: float = 0.0
    plain_seconds: float = 0.0
    identical: float = 0.0

    def __add__(self, other: SetSums) -> SetSums:
        sums = {name: value + other._numbers()[name] for name, value in self._numbers().items()}
        return SetSums(self.tally + other.tally, **sums)

    def over(self, group: ProcessGroup | None) -> SetSums:
        """The sums of all ranks of the group, equal on each; without a group, these."""
        numbers = self._numbers()
        values = all_reduced([*self.tally.blocks_by_streak, *numbers.values()], group)
        num_streaks = len(self.tally.blocks_by_streak)
        tally = StreakTally(tuple(round(value) for value in values[:num_streaks]))
        return SetSums(tally, **dict(zip(numbers, values[num_streaks:], strict=True)))

    @staticmethod
    def of(answers: Sequence[Answer], watch: Stopwatch, num_drafted: int) -> SetSums:
        """Sums of one batch decoded with the drafter."""
        return SetSums(
            tally=StreakTally.of([streak for answer in answers for streak in answer.streaks], num_drafted),
            prompts=len(answers),
            tokens=num_tokens(answers),
            accepted=sum(answer.accepted for answer in answers),
            expected=sum(answer.expected for answer in answers),
            prefill_seconds=watch.of("prefill"),
            draft_seconds=watch.of("draft"),
            verify_seconds=watch.of("verify"),
            rest_seconds=watch.of("rest"),
        )

    def _numbers(self) -> dict[str, float]:
        return {field.name: vars(self)[field.name] for field in fields(self) if field.name != "tally"}


def num_tokens(answers: Sequence[Answer]) -> int:
    """Generated tokens without each answer's first."""
    return sum(len(answer.tokens) - 1 for answer in answers)


def all_reduced(values: Sequence[float], group: ProcessGroup | None) -> list[float]:
    """The sum of each number over the group's ranks, fp64, equal on all; without a group, the numbers themselves.

    All-reduce of one small vector, on the group's own device; it is read only afterwards and has no adjoint.
    """
    if group is None:
        return list(values)
    on_gpu = dist.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    vector = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(vector, group=group)
    return vector.tolist()
