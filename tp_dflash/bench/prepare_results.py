"""What ``bench prepare`` found: times of each round, and the ratios that follow from them."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tp_dflash.parallel.versions import versions

CALL, FASTEST, PREPARE = "tokenizer(texts)", "encode_batch_fast(texts)", "prepare"
_GIB = float(1 << 30)


@dataclass(frozen=True)
class Timing:
    """One of the three in one round, over all texts."""

    name: str
    seconds: float
    processor_seconds: float


@dataclass
class PrepareResults:
    """peak_bytes: memory of all processes of the largest preparation. tokens: in the prepared folder."""

    conversations: int
    tokens: int = 0
    peak_bytes: int = 0
    timings: list[Timing] = field(default_factory=list)

    def median(self, name: str) -> Timing:
        """Medians over the rounds."""
        mine = [timing for timing in self.timings if timing.name == name]
        return Timing(
            name,
            statistics.median(timing.seconds for timing in mine),
            statistics.median(timing.processor_seconds for timing in mine),
        )

    def figures(self) -> dict[str, float]:
        """Speed of preparing / speed of the tokenizer: by time, and by processor time, which other programs on the
        machine do not change."""
        call, fastest, prepare = (self.median(name) for name in (CALL, FASTEST, PREPARE))
        return {
            "speed_vs_tokenizer": call.seconds / prepare.seconds,
            "speed_vs_tokenizer_by_processor_time": call.processor_seconds / prepare.processor_seconds,
            "speed_vs_fastest_call": fastest.seconds / prepare.seconds,
            "speed_vs_fastest_call_by_processor_time": fastest.processor_seconds / prepare.processor_seconds,
            "peak_gib": self.peak_bytes / _GIB,
        }

    def text(self) -> str:
        """Medians, then the figures, a line each."""
        lines = [f"{self.conversations:,} conversations, {self.tokens:,} tokens"]
        for name in (CALL, FASTEST, PREPARE):
            timing = self.median(name)
            lines.append(
                f"{name:26}{timing.seconds:8.1f} s {timing.processor_seconds:8.1f} s of processors "
                f"{self.tokens / timing.seconds:12,.0f} tokens/s"
            )
        return "\n".join([*lines, *(f"{name}: {value:.3f}" for name, value in self.figures().items())])

    def write(self, path: Path, command: str) -> None:
        """All of it as JSON, folders included."""
        document: dict[str, Any] = {
            "command": command,
            "machine": machine(),
            "versions": versions(("transformers", "tokenizers", "numpy")),
            "sizes": {"conversations": self.conversations, "tokens": self.tokens},
            "figures": {name: round(value, 4) for name, value in self.figures().items()},
            "measurements": [asdict(timing) for timing in self.timings],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def machine() -> str:
    """Cores that this process may use, and their kind."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{len(os.sched_getaffinity(0))} cores, {model}"
