"""A wrong call on one rank is the same error on every rank, at once, never a hang and never a number."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss

VOCABULARY, WIDTH, ROWS = 11, 3, 8


def _call(rank: int, size: int, fault: str) -> str:
    """Make a call in which only the last rank does something wrong; return what it raised."""
    wrong = fault if rank == size - 1 else ""
    vocab = VocabRange.split(VOCABULARY, size)[rank]
    whole = VocabRange(0, VOCABULARY, VOCABULARY)
    weight = torch.randn(VOCABULARY, WIDTH)
    shard = HeadShard(weight[vocab.start : vocab.stop], vocab)
    rows = 12 if wrong == "more rows" else 6 if wrong == "part of a block" else ROWS
    hidden = torch.randn(rows, VOCABULARY if wrong == "logits" else WIDTH, requires_grad=True)
    labels = torch.zeros(rows, dtype=torch.int64)
    weights = torch.ones(rows)
    index = torch.arange(rows) % 4
    if wrong.startswith("label"):
        labels[3] = VOCABULARY if wrong == "label above" else -1
    if wrong == "teacher index":
        index[2] = 4
    if wrong == "weight":
        weights[1] = float("nan")
    arguments: dict[str, Any] = {
        "drafter_head": {
            "full head": HeadShard(weight, vocab),
            "full range": HeadShard(weight, whole),
            "short head": HeadShard(weight[: vocab.size - 1], vocab),
            "dtype": HeadShard(shard.weight_vD.double(), vocab),
        }.get(wrong, shard),
        "teacher_head": shard,
        "objective": Objective(kl=0.5 if wrong == "objective" else 0.9),
        "block_size": 4,
        "group": dist.group.WORLD,
        "chunk_rows": 3 if wrong == "chunk" else 5,
        "active_rows": 7 if fault == "bucket" else None,
        "teacher_rows": 3 if fault == "teacher bucket" else None,
    }
    if wrong == "fewer labels":
        labels = labels[:-1]
    try:
        sharded_head_loss(hidden, torch.randn(4, WIDTH), index, labels, weights, **arguments)
    except ValueError as error:
        return str(error)
    return "no error"


FAULTS = [
    ("label above", r"rank 1 has labels outside 0\.\.10 .* \(one is 11\)"),
    ("label below", r"rank 1 has labels outside 0\.\.10 .* \(one is -1\)"),
    ("teacher index", r"rank 1 has teacher indices outside .* \(one is 4\)"),
    ("weight", r"rank 1 has a negative or non-finite weight"),
    ("bucket", r"rank 0 has 8 rows of weight above 0, .* raise active_rows"),
    ("teacher bucket", r"rank 0 uses 4 teacher rows, .* raise teacher_rows"),
    ("more rows", r"unequal numbers of rows, \{0: 8, 1: 12\}"),
    ("part of a block", r"unequal numbers of rows, \{0: 8, 1: 6\}"),
    ("fewer labels", r"rank 1 has 8 hidden rows, but 7 labels"),
    ("logits", r"as wide as the vocabulary: pass hidden rows, not logits"),
    ("full head", r"all 11 rows where a shard of 5 belongs"),
    ("full range", r"a full head where a shard belongs"),
    ("short head", r"has 4 rows, its vocab range 6\.\.11 .* ask for 5"),
    ("dtype", r"rank 1's hidden rows are torch.float32, its frozen head shard torch.float64"),
    ("objective", r"different settings"),
    ("chunk", r"different chunk_rows: \[5, 3\]"),
]


def _all_faults(rank: int, size: int) -> list[str]:
    return [_call(rank, size, fault) for fault, _ in FAULTS]


@pytest.fixture(scope="module")
def said_by_rank() -> list[list[str]]:
    """What each rank raised for each fault, one call after the other: a rank left behind would hang the next."""
    return run_ranks(_all_faults, 2, 2, timeout=30.0)


@pytest.mark.parametrize("i", range(len(FAULTS)), ids=[fault for fault, _ in FAULTS])
def test_one_wrong_rank_is_an_error_on_both(i: int, said_by_rank: list[list[str]]) -> None:
    first, second = (said[i] for said in said_by_rank)
    assert first == second
    assert re.search(FAULTS[i][1], first), first


def test_a_faulty_call_on_a_device_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where values cannot be looked at without waiting, loss and gradient are NaN and the result says why when asked."""
    from tp_dflash.head import head_call

    monkeypatch.setattr(head_call.HeadCall, "_raise_on_host", lambda self, metadata: None)
    vocab = VocabRange(0, VOCABULARY, VOCABULARY)
    weight, hidden = torch.randn(VOCABULARY, WIDTH, requires_grad=True), torch.randn(4, WIDTH, requires_grad=True)
    result = sharded_head_loss(
        hidden,
        torch.randn(4, WIDTH),
        torch.arange(4),
        torch.tensor([0, 11, 3, 4]),
        torch.ones(4),
        drafter_head=HeadShard(weight, vocab),
        teacher_head=HeadShard(weight.detach(), vocab),
        objective=Objective(),
        block_size=4,
    )
    assert result.loss_sum.isnan()
    result.loss_sum.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.isnan().all()
    assert weight.grad.isnan().all()
    with pytest.raises(ValueError, match="labels outside"):
        result.raise_faults()
