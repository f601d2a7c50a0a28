"""The world that torchrun made, or a world of one: read from the environment once, entered and left here.

In: environment variables. Out: plain numbers and an initialised default process group. A rank that fails prints its
traceback with its role and leaves at once, without waiting for anyone: torchrun sees it and ends the others.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True)
class World:
    """Who this process is. local_world_size: ranks on this node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @staticmethod
    def from_environment() -> World:
        """torchrun's variables; a world of one where there are none."""
        if "RANK" not in os.environ:
            return World(0, 1, 0, 1)
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return World(*(int(os.environ[name]) for name in names))


@contextmanager
def joined(world: World, timeout_seconds: float) -> Iterator[None]:
    """Enter the default process group (gloo: it only carries handshakes; roles open groups of their own) and leave it."""
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_seconds)
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timeout)
        yield
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = dist.FileStore(str(Path(folder) / "store"), 1)
            dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timeout)
            yield
    dist.destroy_process_group()


@contextmanager
def leaving_at_once(label: str) -> Iterator[None]:
    """End the process with code 1 on any exception, its traceback and ``label`` (rank, role, GPU) shown first.

    Tearing down a process group whose other members wait in a collective would hang; the exit code is what torchrun needs.
    """
    faulthandler.enable()
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            raise
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        sys.stdout.flush()
        text = traceback.format_exc()
        os.write(2, f"\n[{label}] failed:\n{text}".encode())
        os._exit(code)
