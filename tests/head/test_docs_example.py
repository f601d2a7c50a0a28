"""The example of docs/head.md runs as it is printed, alone and on two ranks, and gives one loss over all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import run_ranks
from tp_dflash.config.objective import Objective
from tp_dflash.head import DraftVocabulary, dense_head_loss

DOCS = Path(__file__).parent.parent.parent / "docs" / "head.md"


def _printed() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(block, names)  # the documentation's own code
    return names


def _inputs(rank: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rank)
    weights = torch.ones(8)
    weights[::4] = 0.0
    weights[7 - rank] = 0.0
    return (
        torch.randn(8, 6, generator=generator, dtype=torch.float64),
        torch.randn(5, 6, generator=generator, dtype=torch.float64),
        torch.randint(5, (8,), generator=generator),
        torch.randint(19, (8,), generator=generator),
        weights,
    )


def _head() -> torch.Tensor:
    return torch.randn(19, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def _step(rank: int, size: int) -> dict[str, torch.Tensor]:
    hidden, *rest = _inputs(rank)
    hidden.requires_grad_()
    figures = _printed()["train_step"](hidden, *rest, _head(), dist.group.WORLD if size > 1 else None)
    assert hidden.grad is not None
    return {**figures, "grad": hidden.grad}


def test_printed_step_on_one_and_two_ranks() -> None:
    for size in (1, 2):
        results = run_ranks(_step, size, size) if size > 1 else [_step(0, 1)]
        hiddens, numerator, denominator = [], torch.zeros((), dtype=torch.float64), torch.zeros(())
        for rank in range(size):
            hidden, *rest = _inputs(rank)
            hiddens.append(hidden.requires_grad_())
            part = dense_head_loss(
                hidden,
                *rest,
                drafter_weight_VD=_head(),
                teacher_weight_VD=_head(),
                objective=Objective(kl=0.9, ce=0.1),
                block_size=4,
            )
            numerator, denominator = numerator + part.loss_sum, denominator + part.weight_sum
        (numerator / denominator).backward()
        for result, hidden in zip(results, hiddens, strict=True):
            torch.testing.assert_close(result["grad"], hidden.grad)
            assert result["rows"] == 5
            assert result["top-1 hits"] <= result["top-5 hits"]


def test_printed_reduced_call() -> None:
    reduced = DraftVocabulary.keep(torch.tensor([1, 4, 6]), 19)
    drafter, teacher, labels, weights = _printed()["reduced_call"](
        reduced.d2t, reduced.t2d, _head(), torch.zeros(2, 6), torch.tensor([4, 5]), torch.ones(2), 2, 0
    )
    assert (drafter.vocab.size, teacher.weight_vD.shape[0]) == (2, 2)
    torch.testing.assert_close(teacher.weight_vD, _head()[[1, 4]])
    assert (labels.tolist(), weights.tolist()) == ([1, -1], [1.0, 0.0])
