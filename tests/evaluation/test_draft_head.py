"""Drafted rows are read from the head in one matrix product: products of batches copy their second factor on CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tp_dflash.evaluation import DraftHead


class _Operators(TorchDispatchMode):
    """Keeps the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("num_prompts", [1, 3])
@pytest.mark.parametrize("first", [0, 1], ids=["anchor predicts too", "behind the anchor"])
def test_rows_of_a_block_meet_the_head_in_one_product(num_prompts: int, first: int) -> None:
    torch.manual_seed(0)
    head_vD = torch.randn(500, 8)
    hidden_PKD = torch.randn(num_prompts, 5, 8)[:, first:]
    # Not in inference mode, in which operators show whole and not by their parts.
    with torch.no_grad(), _Operators() as operators:
        logits_PKv = DraftHead(head_vD).logits(hidden_PKD)
    expected_PKv = torch.stack([torch.stack([head_vD @ row for row in rows]) for rows in hidden_PKD])
    torch.testing.assert_close(logits_PKv, expected_PKv)
    assert "mm" in operators.names
    assert "bmm" not in operators.names
