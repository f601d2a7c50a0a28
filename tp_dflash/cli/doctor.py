"""``tp-dflash doctor``: what a bug report needs, as text; nothing that is secret."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

# Names only: what these hold decides how a job runs, and none holds a secret.
_SHOWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "WORLD_SIZE")
_SHOWN_PREFIXES = ("NCCL_", "GLOO_", "SLURM_JOB_", "SLURM_NNODES", "TORCH_NCCL_", "TORCHELASTIC_")
_OPTIONAL = ("datasets", "pyarrow", "matplotlib", "wandb", "gguf", "liger-kernel", "cut-cross-entropy", "triton")


def doctor(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a run: its last events and each rank's last words.")
    ] = None,
) -> None:
    """Print versions, GPUs, disks, settings of the environment, and a run's last events."""
    for title, lines in _sections(run):
        print(f"{title}\n" + "\n".join(f"  {line}" for line in lines))


def _sections(run: Path | None) -> list[tuple[str, list[str]]]:
    from tp_dflash.parallel.versions import versions

    found = [
        ("machine", _machine()),
        ("versions", [f"{name}: {version}" for name, version in versions().items()] + _optional()),
        ("devices", _devices()),
        ("environment", _environment()),
    ]
    if run is not None:
        found += _run(run)
    return found


def _machine() -> list[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    cores = len(os.sched_getaffinity(0))
    return [
        f"{socket.gethostname()}: {platform.platform()}",
        f"{cores} cores, {memory:.0f} GiB memory, {free:.0f} GiB free where this was started",
    ]


def _optional() -> list[str]:
    lines = []
    for name in _OPTIONAL:
        try:
            lines.append(f"{name}: {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    return lines


def _devices() -> list[str]:
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return [f"no GPU that torch {torch.__version__} can use; gloo: {dist.is_gloo_available()}"]
    lines = [
        f"driver's CUDA as torch sees it: {torch.version.cuda}; NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    ]
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        free, total = torch.cuda.mem_get_info(number)
        lines.append(f"GPU {number}: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    return lines


def _environment() -> list[str]:
    names = sorted(name for name in os.environ if name in _SHOWN or name.startswith(_SHOWN_PREFIXES))
    return [f"{name}={os.environ[name]}" for name in names] or ["nothing that matters here is set"]


def _run(folder: Path) -> list[tuple[str, list[str]]]:
    from tp_dflash.report import RunRecord

    try:
        record = RunRecord.read(folder)
    except ValueError as error:
        return [("run", [str(error)])]
    events = [f"step {event.get('step')}: {event.get('kind')}: {event.get('text')}" for event in record.events[-10:]]
    ranks = [
        f"rank {rank['rank']} ({rank.get('role')}, GPU {rank.get('gpu')}): step {rank.get('step')}"
        for rank in record.ranks
    ]
    failures = []
    for path in sorted((folder / "logs").glob("rank-*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        failures += [f"{path.name}: {line}" for line in lines[-5:]]
    return [
        (f"run {folder}", [f"argv: {' '.join(map(str, record.settings.get('argv', [])))}", *ranks]),
        ("last events", events or ["none"]),
        ("last lines of the ranks' logs", failures or ["none"]),
    ]
