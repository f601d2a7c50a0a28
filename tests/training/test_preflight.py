"""Machines that do not fit together are found out before the start, with every fault and the same words on all ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.placement import RankPlace
from tp_dflash.training.preflight import MachineFacts, PreflightError, check_machines, find_faults

FACTS = MachineFacts(
    rank=0, host="a", gpu=0, num_gpus=2, nccl_available=True, python="3.12.1", torch="2.11", transformers="5.24",
    tp_dflash="0.1.0", cuda="13.0", nccl="2.28", clock=100.0, free_bytes=2**40, token="t",
)  # fmt: skip


def test_equal_machines_pass() -> None:
    assert find_faults([FACTS, replace(FACTS, rank=1, host="b", clock=130.0, gpu=1)], "t") == []


def test_every_fault_is_listed() -> None:
    other = replace(FACTS, rank=1, host="b", torch="2.12", nccl="2.27", clock=500.0, gpu=2, token="")
    faults = "\n".join(find_faults([replace(FACTS, free_bytes=2**20), other], "t"))
    for words in (
        "one version of torch on all nodes, got 2.11 on a; 2.12 on b",
        "one version of NCCL",
        "the clocks of b and a differ by 400 s",
        "rank 1 on b: expected GPU 2, got 2 visible GPUs",
        "a disk that all nodes share",
        "1 MiB free",
    ):
        assert words in faults


def test_a_machine_without_gpus_among_others() -> None:
    assert "visible GPUs" in find_faults([FACTS, replace(FACTS, host="b", num_gpus=0, cuda="13.0")], "t")[0]


def _check(rank: int, folder: str) -> str:
    place = RankPlace(rank, 0, rank, is_target=False, is_drafter=True, is_head=True)
    try:
        check_machines(place, Path(folder if rank else folder.removesuffix("-other")), dist.group.WORLD)
    except PreflightError as error:
        return str(error)
    return ""


def test_a_folder_that_is_not_shared_is_told_alike_on_all_ranks(tmp_path: Path) -> None:
    assert run_ranks(_check, 2, str(tmp_path / "run")) == ["", ""]
    first, second = run_ranks(_check, 2, str(tmp_path / "run-other"))
    assert first == second
    assert "rank 1 on" in first
    assert "a disk that all nodes share" in first
