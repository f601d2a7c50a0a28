"""bench prepare at a small size: everything is measured, ratios follow from medians, and usage counts other processes too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data import tiny
from tp_dflash.bench.made_up_conversations import write_conversations
from tp_dflash.bench.prepare_command import measure_preparing
from tp_dflash.bench.prepare_results import CALL, FASTEST, PREPARE, PrepareResults, Timing
from tp_dflash.bench.prepare_usage import Usage

_BUSY = "import time\nend = time.process_time() + 1.2\nx = bytearray(60 << 20)\nwhile time.process_time() < end: pass\ntime.sleep(1.2)"


def test_all_three_run_on_the_same_text(tmp_path: Path) -> None:
    tiny.make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    found = measure_preparing(str(tmp_path / "tokenizer"), 30, 2, tmp_path)
    assert [timing.name for timing in found.timings] == [CALL, PREPARE, FASTEST] * 2
    assert all(timing.seconds > 0 for timing in found.timings)
    assert found.tokens > 30 * 50
    assert found.peak_bytes > 50 << 20
    found.write(tmp_path / "deep" / "prepare.json", "tp-dflash bench prepare")
    written = json.loads((tmp_path / "deep" / "prepare.json").read_text())
    assert written["figures"].keys() == found.figures().keys()
    assert written["sizes"] == {"conversations": 30, "tokens": found.tokens}


def test_figures_are_ratios_of_medians() -> None:
    timings = [Timing(CALL, seconds, 2 * seconds) for seconds in (8.0, 9.0, 70.0)]
    timings += [Timing(PREPARE, seconds, seconds) for seconds in (10.0, 10.0, 99.0)]
    timings += [Timing(FASTEST, 6.0, 6.0)] * 3
    found = PrepareResults(3, 100, 1 << 29, timings)
    expected = [0.9, 1.8, 0.6, 0.6, 0.5]
    assert list(found.figures().values()) == pytest.approx(expected)
    assert "speed_vs_tokenizer: 0.900" in found.text()


def test_usage_counts_the_processes_that_were_started() -> None:
    with Usage() as usage:
        subprocess.run([sys.executable, "-c", _BUSY], check=True)
    assert 0.9 < usage.processor_seconds < 4
    assert usage.peak_bytes > 110 << 20
    with Usage() as idle:
        time.sleep(0.1)
    assert idle.processor_seconds < 0.3


def test_conversations_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_conversations(tmp_path / name, 50, seed)
    one, same, other = ((tmp_path / name).read_text() for name in "abc")
    assert one == same != other
    for line in one.splitlines():
        messages = json.loads(line)["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(message["content"].strip() for message in messages)
