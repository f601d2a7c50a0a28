"""What ``bench head`` found: measurements, and the figures that follow from them."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tp_dflash.bench.head_accuracy import GradientError
from tp_dflash.bench.head_problem import HeadSizes
from tp_dflash.bench.head_timing import Measurement
from tp_dflash.parallel.versions import versions

_PACKAGES = ("torch", "triton", "liger-kernel", "cut-cross-entropy")


@dataclass(frozen=True)
class Timed:
    """One contestant. products: how many matrix products of rows x width x vocabulary its work needs."""

    name: str
    num_ranks: int
    rows: int
    products: int
    found: Measurement

    def teraflops(self, sizes: HeadSizes) -> float:
        """Needed operations a second on each GPU; recomputed ones do not count."""
        flops = self.products * replace(sizes, rows=self.rows).product_flops(sizes.vocabulary) / self.num_ranks
        return flops / (self.found.milliseconds * 1e-3) / 1e12


@dataclass(frozen=True, eq=False)
class HeadResults:
    """extra_gib_by_rows: extra memory of the loss at other numbers of rows. errors: by precision of the logits."""

    sizes: HeadSizes
    num_ranks: int
    timed: list[Timed]
    extra_gib_by_rows: dict[int, float]
    errors: dict[str, GradientError]

    def find(self, name: str, num_ranks: int) -> Measurement | None:
        """What was measured for a contestant, None if it did not run."""
        return next((t.found for t in self.timed if t.name == name and t.num_ranks == num_ranks), None)

    def figures(self) -> dict[str, float | None]:
        """The figures of the project; None where a part did not run. Ratios are of medians of the same run."""
        loss, alone = self.find("sharded loss", self.num_ranks), self.find("sharded loss", 1)
        return {
            "ratio_to_products": _ratio(loss, self.find("bare products", self.num_ranks)),
            "extra_gib": None if loss is None else loss.extra_gib,
            "shared_rows_ratio": _ratio(self.find("sharded loss, shared teacher rows", self.num_ranks), loss),
            "tp_speedup": _ratio(alone, loss) if self.num_ranks > 1 else None,
            "speedup_over_liger": _ratio(self.find("Liger fused linear JSD (KL only)", 1), alone),
            "speedup_over_compiled": _ratio(self.find("compiled checkpointed chunks", 1), alone),
            "gradient_error": self.errors["float32"].gradient,
        }

    def document(self, command: str, device: torch.device) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "command": command,
            "machine": machine(device, self.num_ranks),
            "versions": versions(_PACKAGES),
            "sizes": vars(self.sizes),
            "figures": self.figures(),
            "measurements": [
                {
                    "name": timed.name,
                    "tp": timed.num_ranks,
                    "rows": timed.rows,
                    "milliseconds": timed.found.milliseconds,
                    "teraflops_per_gpu": timed.teraflops(self.sizes),
                    "extra_gib": timed.found.extra_gib,
                }
                for timed in self.timed
            ],
            "extra_gib_by_rows": {str(rows): gib for rows, gib in self.extra_gib_by_rows.items()},
            "errors_at_small_kl": {precision: vars(error) for precision, error in self.errors.items()},
        }

    def write(self, path: Path, command: str, device: torch.device) -> None:
        """Write the document as JSON, folders included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document(command, device), indent=2) + "\n", encoding="utf-8")


def machine(device: torch.device, num_ranks: int) -> str:
    """What the ranks ran on."""
    if device.type == "cuda":
        return f"{num_ranks} x {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"{num_ranks} CPU ranks, {platform.machine()}"


def _ratio(numerator: Measurement | None, denominator: Measurement | None) -> float | None:
    if numerator is None or denominator is None:
        return None
    return numerator.milliseconds / denominator.milliseconds
