"""What an evaluation found, as figures that can be printed, logged, stored and drawn.

In: sums of each prompt set. Out: ratios, each divided once. The JSON form holds every figure under the name it has here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tp_dflash.evaluation.decoding import DecodingRules
from tp_dflash.evaluation.set_sums import SetSums
from tp_dflash.evaluation.streaks import StreakTally


@dataclass(frozen=True)
class PromptSetReport:
    """Figures of one prompt set.

    acceptance_length: tokens committed a target pass, bonus token included. streak_histogram: blocks with 0, 1, .. accepted
    drafted tokens. acceptance_by_position: for each drafted position, the share of blocks that accepted it;
    conditional_acceptance: among those that accepted all before it. calibration: accepted tokens that the drafter itself
    expected over those that were accepted (1: it knows how good it is; None: drawn drafts, which say nothing of that).
    Speeds are tokens of answers per second of decoding, prefill apart, of one rank; speedup compares the prompts that were
    decoded both ways in this run; of those, identical answers were equal (all of them, expected of greedy decoding in fp32;
    None: sampled answers, which differ by chance).
    """

    name: str
    num_prompts: int
    num_tokens: int
    num_blocks: int
    acceptance_length: float
    streak_histogram: tuple[int, ...]
    acceptance_by_position: tuple[float, ...]
    conditional_acceptance: tuple[float, ...]
    expected_streak: float
    calibration: float | None
    tokens_per_second: float
    plain_tokens_per_second: float | None
    speedup: float | None
    compared_prompts: int
    identical: int | None
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    rest_seconds: float

    @property
    def phase_seconds(self) -> dict[str, float]:
        """The parts of decoding: drafting, the target's passes, and everything else."""
        return {"draft": self.draft_seconds, "verify": self.verify_seconds, "rest": self.rest_seconds}

    @staticmethod
    def of(name: str, sums: SetSums, rules: DecodingRules) -> PromptSetReport:
        """Figures of a set's sums, decoded by these rules."""
        tally = sums.tally
        seconds = sums.draft_seconds + sums.verify_seconds + sums.rest_seconds
        plain = _ratio(sums.plain_tokens, sums.plain_seconds)
        compared = _ratio(sums.compared_tokens, sums.compared_seconds)
        return PromptSetReport(
            name=name,
            num_prompts=round(sums.prompts),
            num_tokens=round(sums.tokens),
            num_blocks=tally.num_blocks,
            acceptance_length=tally.acceptance_length,
            streak_histogram=tally.blocks_by_streak,
            acceptance_by_position=tally.acceptance_by_position,
            conditional_acceptance=tally.conditional_acceptance,
            expected_streak=sums.expected / max(1, tally.num_blocks),
            calibration=None if rules.draws_drafts else _ratio(sums.expected, sums.accepted),
            tokens_per_second=_ratio(sums.tokens, seconds) or 0.0,
            plain_tokens_per_second=plain,
            speedup=compared / plain if compared and plain else None,
            compared_prompts=round(sums.compared_prompts),
            identical=None if rules.temperature else round(sums.identical),
            prefill_seconds=sums.prefill_seconds,
            draft_seconds=sums.draft_seconds,
            verify_seconds=sums.verify_seconds,
            rest_seconds=sums.rest_seconds,
        )


@dataclass(frozen=True)
class EvaluationReport:
    """All sets of one evaluation. settings: the evaluation section without its prompt files.

    offline: acceptance length of the chain and of trees on documents as they stand; empty where none were given.
    """

    drafter: str
    target: str
    settings: Mapping[str, Any]
    sets: tuple[PromptSetReport, ...]
    offline: Mapping[str, float] = field(default_factory=dict)

    @property
    def acceptance_length(self) -> float:
        """Over all blocks of all sets."""
        tallies = [StreakTally(each.streak_histogram) for each in self.sets]
        return sum(tallies[1:], tallies[0]).acceptance_length

    def figures(self) -> dict[str, float]:
        """The curves of a training log: acceptance lengths over all, of each set and offline, each set's calibration."""
        curves = {"acceptance_length": self.acceptance_length}
        for each in self.sets:
            curves[f"{each.name}/acceptance_length"] = each.acceptance_length
            if each.calibration is not None:
                curves[f"{each.name}/calibration"] = each.calibration
        return curves | {f"offline/{name}": length for name, length in self.offline.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "target": self.target,
            "settings": dict(self.settings),
            "acceptance_length": self.acceptance_length,
            "sets": [asdict(each) for each in self.sets],
            "offline": dict(self.offline),
        }

    def write(self, path: Path) -> None:
        """Write the JSON form; folders above are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def _ratio(above: float, below: float) -> float | None:
    """None where nothing was counted."""
    return above / below if below else None
