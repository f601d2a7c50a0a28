"""Signals: the first asks once, whatever the main thread does; a second one, later, ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# The main thread waits where no Python code runs; "asked" is printed by the thread that listens.
PROGRAM = """
import os, sys, threading, time
from tp_dflash.cli.signals import calling_on_signals
asked = threading.Event()
def ask():
    print("asked", flush=True)
    asked.set()
with calling_on_signals(ask, "rank 0"):
    print("ready", flush=True)
    lock = threading.Lock(); lock.acquire(); lock.acquire(timeout={seconds})
    print("left", flush=True)
"""


def _start(seconds: float) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_the_first_signal_asks_and_one_that_comes_with_it_is_the_same_request(number: signal.Signals) -> None:
    program = _start(3.0)
    program.send_signal(number)
    time.sleep(0.3)
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=20)
    assert program.returncode == 0
    assert out == "asked\nleft\n"
    assert f"{number.name}: stops after this step and saves" in err


def test_a_second_signal_later_ends_the_process_at_once() -> None:
    program = _start(60.0)
    program.send_signal(signal.SIGINT)
    time.sleep(2.3)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=10)
    assert program.returncode == 128 + signal.SIGINT
    assert out == "asked\n"
    assert "SIGINT again: leaves at once" in err
