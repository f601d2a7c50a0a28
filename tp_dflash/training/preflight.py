"""What must be equal or present on all machines before a run starts; one message on every rank if it is not.

In: this rank's machine. Out: nothing, or the same PreflightError everywhere, which lists every fault found. Ranks tell each
other facts and each judges all of them, so nobody has to be asked twice.
"""

from __future__ import annotations

import platform
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tp_dflash import __version__
from tp_dflash.placement import RankPlace

_LARGEST_CLOCK_DIFFERENCE = 60.0
_LEAST_FREE_BYTES = 256 * 2**20
_EQUAL = {
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
    "tp_dflash": "tp_dflash",
    "cuda": "CUDA",
    "nccl": "NCCL",
}


class PreflightError(RuntimeError):
    """The machines are not fit to run together; the message lists why."""


@dataclass(frozen=True)
class MachineFacts:
    """One rank's machine. token: what it reads of the file that the first rank wrote into the run folder."""

    rank: int
    host: str
    gpu: int
    num_gpus: int
    nccl_available: bool
    python: str
    torch: str
    transformers: str
    tp_dflash: str
    cuda: str
    nccl: str
    clock: float
    free_bytes: int
    token: str


def check_machines(place: RankPlace, run_folder: Path, group: ProcessGroup) -> None:
    """To be called by all ranks of ``group`` at once. gathers objects on the host, no adjoint."""
    token = _share_token(run_folder, group)
    facts = _facts(place, run_folder)
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, asdict(facts), group=group)
    faults = find_faults([MachineFacts(**found) for found in gathered], token)
    if faults:
        raise PreflightError("\n  ".join(["the machines are not fit to run together:", *faults]))


def find_faults(facts: Sequence[MachineFacts], token: str) -> list[str]:
    """Every fault in words. token: what the first rank wrote, or why it could not, after an exclamation mark."""
    if token.startswith("!"):
        return [token[1:]]
    faults = []
    for name, words in _EQUAL.items():
        faults += _unequal(facts, name, words)
    for one in facts:
        where = f"rank {one.rank} on {one.host}"
        if one.num_gpus and one.gpu >= one.num_gpus:
            faults.append(f"{where}: expected GPU {one.gpu}, got {one.num_gpus} visible GPUs; change the placement")
        if one.num_gpus and not one.nccl_available:
            faults.append(
                f"{where}: expected NCCL for {one.num_gpus} GPUs, got a torch without it; install another torch"
            )
        if one.token != token:
            faults.append(
                f"{where}: expected the run folder of rank 0's machine, got another; training.run_folder must lie on a "
                "disk that all nodes share"
            )
    if len({one.num_gpus > 0 for one in facts}) > 1:
        faults += _unequal(facts, "num_gpus", "visible GPUs")
    clocks = [one.clock for one in facts]
    if max(clocks) - min(clocks) > _LARGEST_CLOCK_DIFFERENCE:
        late, early = max(facts, key=lambda one: one.clock), min(facts, key=lambda one: one.clock)
        difference = late.clock - early.clock
        faults.append(
            f"the clocks of {late.host} and {early.host} differ by {difference:.0f} s; set them by a time server"
        )
    if facts[0].free_bytes < _LEAST_FREE_BYTES:
        faults.append(f"the run folder's disk has {facts[0].free_bytes / 2**20:.0f} MiB free; free some")
    return faults


def _unequal(facts: Sequence[MachineFacts], name: str, words: str) -> list[str]:
    hosts: dict[str, set[str]] = {}
    for one in facts:
        hosts.setdefault(str(vars(one)[name]), set()).add(one.host)
    if len(hosts) == 1:
        return []
    found = "; ".join(f"{value} on {', '.join(sorted(names))}" for value, names in sorted(hosts.items()))
    return [f"expected one version of {words} on all nodes, got {found}; make them equal"]


def _share_token(run_folder: Path, group: ProcessGroup) -> str:
    told: list[Any] = [None]
    if dist.get_rank(group) == 0:
        token = uuid.uuid4().hex
        try:
            run_folder.mkdir(parents=True, exist_ok=True)
            _token_file(run_folder).write_text(token, encoding="utf-8")
            told[0] = token
        except OSError as error:
            reason = error.strerror or str(error)
            told[0] = (
                f"!{run_folder}: expected a run folder that can be written, got: {reason}; choose another "
                "training.run_folder, or free its disk or correct its rights"
            )
    dist.broadcast_object_list(told, group=group, group_src=0)
    return str(told[0])


def _token_file(run_folder: Path) -> Path:
    return run_folder / ".shared"


def _facts(place: RankPlace, run_folder: Path) -> MachineFacts:
    try:
        read, free = _token_file(run_folder).read_text(encoding="utf-8"), shutil.disk_usage(run_folder).free
    except OSError:
        read, free = "", 0
    has_nccl = dist.is_nccl_available()
    return MachineFacts(
        rank=place.rank,
        host=socket.gethostname(),
        gpu=place.gpu,
        num_gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        nccl_available=has_nccl,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=metadata.version("transformers"),
        tp_dflash=__version__,
        cuda=torch.version.cuda or "none",
        nccl=".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() and has_nccl else "none",
        clock=time.time(),
        free_bytes=free,
        token=read,
    )
