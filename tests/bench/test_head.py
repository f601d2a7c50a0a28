"""bench head on the CPU at small sizes: every figure follows from its measurements, alone and under two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.bench.head_accuracy import GradientError, gradient_error
from tp_dflash.bench.head_command import HeadBench
from tp_dflash.bench.head_problem import HeadSizes
from tp_dflash.bench.head_report import draw_head, head_text
from tp_dflash.bench.head_results import HeadResults, Timed
from tp_dflash.bench.head_timing import Measurement

SIZES = HeadSizes(rows=96, width=16, vocabulary=101, block_size=8, chunk_rows=32)
KEYS = {
    "ratio_to_products",
    "extra_gib",
    "shared_rows_ratio",
    "tp_speedup",
    "speedup_over_liger",
    "speedup_over_compiled",
    "gradient_error",
}


def _bench(rank: int, size: int) -> dict[str, object]:
    group = dist.group.WORLD if size > 1 else None
    found = HeadBench(SIZES, group, group, rank, size, torch.device("cpu"), 1, (60,)).run(with_rivals=False)
    return found.document("tp-dflash bench head", torch.device("cpu"))


def test_two_ranks_measure_together() -> None:
    first, second = run_ranks(_bench, 2, 2)
    assert set(first["figures"]) == KEYS
    assert first["figures"]["ratio_to_products"] == second["figures"]["ratio_to_products"] > 0
    assert first["figures"]["tp_speedup"] > 0
    assert list(first["extra_gib_by_rows"]) == ["64"]
    assert [m["name"] for m in first["measurements"] if m["tp"] == 1] == ["bare products", "sharded loss"]


def test_figures_are_ratios_of_medians(tmp_path: Path) -> None:
    def timed(name: str, ranks: int, ms: float) -> Timed:
        return Timed(name, ranks, SIZES.rows, 3, Measurement(ms, 0.5))

    results = HeadResults(
        SIZES,
        2,
        [
            timed("bare products", 2, 10.0),
            timed("sharded loss", 2, 11.0),
            timed("sharded loss, shared teacher rows", 2, 8.8),
            timed("sharded loss", 1, 22.0),
            timed("Liger fused linear JSD (KL only)", 1, 33.0),
        ],
        {},
        {"float32": GradientError(kl=0.002, gradient=0.003, loss=0.0)},
    )
    assert results.figures() == pytest.approx(
        {
            "ratio_to_products": 1.1,
            "extra_gib": 0.5,
            "shared_rows_ratio": 0.8,
            "tp_speedup": 2.0,
            "speedup_over_liger": 1.5,
            "speedup_over_compiled": None,
            "gradient_error": 0.003,
        }
    )
    assert "speedup_over_compiled: not measured" in head_text(results)
    results.write(tmp_path / "folder" / "head.json", "tp-dflash bench head", torch.device("cpu"))
    written = json.loads((tmp_path / "folder" / "head.json").read_text())
    assert {"command", "machine", "versions", "figures"} <= set(written)
    assert written["measurements"][0]["teraflops_per_gpu"] == pytest.approx(3 * 2 * 96 * 16 * 101 / 2 / 0.010 / 1e12)
    pytest.importorskip("matplotlib")
    draw_head(results, "title", tmp_path / "head.png")
    assert (tmp_path / "head.png").stat().st_size > 1000


def test_fp32_logits_stay_exact_near_convergence() -> None:
    """The kind of case that bf16 logits fail: at a KL of about 0.002 their gradient is off by several percent."""
    exact = gradient_error(None, None, torch.device("cpu"), "float32", rows=32, vocabulary=4000)
    rounded = gradient_error(None, None, torch.device("cpu"), "bfloat16", rows=32, vocabulary=4000)
    assert 0.001 < exact.kl < 0.004
    assert exact.gradient < 0.005
    assert rounded.gradient > 5 * exact.gradient


def test_sizes_that_do_not_fit_say_so() -> None:
    with pytest.raises(ValueError, match="take a multiple of 16"):
        HeadSizes(100, 16, 101, 8, 32).rows_of_rank(2)
    with pytest.raises(ValueError, match="at least 1"):
        HeadSizes(0, 16, 101, 8, 32)
