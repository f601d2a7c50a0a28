"""SIGTERM, SIGINT and SIGUSR1: the first one asks the run to stop, one that comes later ends this process at once.

A handler in Python waits until the main thread runs Python code, which may be never while it waits for another rank. The
interpreter's wake-up descriptor is written at once, and a thread reads it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# A launcher passes on what its whole process group got already: that is one request, not two.
_SAME_REQUEST_SECONDS = 2.0


@contextmanager
def calling_on_signals(first: Callable[[], None], label: str) -> Iterator[None]:
    """Call ``first`` in a thread at the first signal; a second one ends the process with 128 + its number."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(reader, first, label), name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()


def _listen(reader: socket.socket, first: Callable[[], None], label: str) -> None:
    asked_at: float | None = None
    while data := reader.recv(1):
        if data[0] not in SIGNALS:
            continue
        name = signal.Signals(data[0]).name
        if asked_at is None:
            asked_at = time.monotonic()
            os.write(2, f"[{label}] {name}: stops after this step and saves; once more ends it at once\n".encode())
            first()
        elif time.monotonic() - asked_at > _SAME_REQUEST_SECONDS:
            os.write(2, f"[{label}] {name} again: leaves at once\n".encode())
            os._exit(128 + data[0])
