"""Run one function on several gloo ranks of this machine and compare what they return.

A forkserver that has the package loaded starts each rank, and a FileStore introduces them to each other: a three-rank test
starts in a fraction of a second and no port can clash. Each rank has one thread, a time limit, and returns a value.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# One server for all tests of a process. A rank that had to import all this by itself would need seconds for it.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "tests.whole_runs", "tp_dflash.training.run"])


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60.0) -> list[Any]:
    """Call ``function(rank, *args)`` on ``world_size`` gloo ranks; return what they returned, in rank order.

    ``function`` must be importable (module level), its arguments and result picklable; tensors are fine. The first rank
    that raises fails the test with its own traceback; ranks still running after ``timeout`` seconds are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        results: Any = context.Queue()
        ranks = [
            context.Process(target=_rank_main, args=(rank, world_size, folder, results, function, args), daemon=True)
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(ranks, results, timeout)
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.join()


def _rank_main(
    rank: int, world_size: int, folder: str, results: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(Path(folder) / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
        results.put((rank, True, _portable(function(rank, *args))))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
        raise


def _portable(value: Any) -> Any:
    """Turn tensors into arrays, so that nothing in the queue depends on the sender's shared memory."""
    if isinstance(value, torch.Tensor):
        return _Array(value.detach().cpu())
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_portable(item) for item in value)
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.tensor()
    if isinstance(value, dict):
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unpack(item) for item in value)
    return value


class _Array:
    """A tensor's bytes, dtype and shape."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self.data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    def tensor(self) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(self.data), dtype=torch.uint8) if self.data else torch.empty(0).byte()
        return flat.view(self.dtype).reshape(self.shape)


def _collect(ranks: list[Any], results: Any, timeout: float) -> list[Any]:
    returned: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(returned) < len(ranks):
        missing = sorted(set(range(len(ranks))) - set(returned))
        try:
            rank, ok, value = results.get(timeout=0.2)
        except queue.Empty:
            dead = [rank for rank in missing if ranks[rank].exitcode not in (None, 0)]
            if dead and results.empty():
                raise AssertionError(f"ranks {dead} died with exit codes {[ranks[r].exitcode for r in dead]}") from None
            if time.monotonic() > deadline:
                raise AssertionError(f"ranks {missing} gave no result within {timeout:.0f} s") from None
            continue
        if not ok:
            raise AssertionError(f"rank {rank} raised:\n{value}")
        returned[rank] = _unpack(value)
    return [returned[rank] for rank in range(len(ranks))]
