"""How wrong the hidden gradient is where training ends: against fp64, at a KL near 0.002."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tp_dflash.config.objective import Objective
from tp_dflash.head import HeadShard, VocabRange, sharded_head_loss
from tp_dflash.head.sharded_loss import LogitsPrecision

# At these a teacher noise of 0.04 makes a KL of about 0.002.
_ROWS, _WIDTH, _VOCABULARY, _WEIGHT_STD, _NOISE = 384, 1024, 32_000, 0.05, 0.04


@dataclass(frozen=True)
class GradientError:
    """kl: mean over the rows. gradient: |g - g64| / |g64| of the hidden gradient. loss: |l / l64 - 1|."""

    kl: float
    gradient: float
    loss: float


def gradient_error(
    group: ProcessGroup | None,
    host_group: ProcessGroup | None,
    device: torch.device,
    precision: LogitsPrecision,
    rows: int = _ROWS,
    vocabulary: int = _VOCABULARY,
    width: int = _WIDTH,
) -> GradientError:
    """KL alone, bf16 rows and heads, ``rows`` rows in all; every rank of the group calls it and gets the same numbers."""
    rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    generator = torch.Generator().manual_seed(7)
    head_VD, hidden_ND, noise_ND = (
        torch.randn((length, width), generator=generator) for length in (vocabulary, rows, rows)
    )
    head_VD = (head_VD * _WEIGHT_STD * (_WIDTH / width) ** 0.5).bfloat16().to(device)
    teacher_ND = (hidden_ND.bfloat16().float() + _NOISE * noise_ND).bfloat16().to(device)
    hidden_ND = hidden_ND.bfloat16().to(device)
    kl, expected_ND = _in_fp64(hidden_ND, teacher_ND, head_VD)
    vocab = VocabRange.split(vocabulary, size)[rank]
    head = HeadShard(head_VD[vocab.start : vocab.stop].clone(), vocab)
    own = slice(rank * rows // size, (rank + 1) * rows // size)
    own_ND = hidden_ND[own].clone().requires_grad_()
    count = own_ND.shape[0]
    loss = sharded_head_loss(
        own_ND,
        teacher_ND[own].clone(),
        torch.arange(count, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.ones(count, device=device),
        drafter_head=head,
        teacher_head=head,
        objective=Objective(kl=1.0, ce=0.0),
        block_size=1,
        group=group,
        host_group=host_group,
        chunk_rows=128,
        logits_precision=precision,
    )
    loss.loss_sum.backward()
    assert own_ND.grad is not None
    parts = torch.stack([
        (own_ND.grad.double() - expected_ND[own]).square().sum(),
        expected_ND[own].square().sum(),
        loss.loss_sum.detach().double(),
    ]).cpu()  # fmt: skip
    if host_group is not None:
        dist.all_reduce(parts, group=host_group)
    wrong, right, total = parts.tolist()
    return GradientError(kl=kl / rows, gradient=(wrong / right) ** 0.5, loss=abs(total / kl - 1.0))


def _in_fp64(hidden_ND: Tensor, teacher_ND: Tensor, head_VD: Tensor) -> tuple[float, Tensor]:
    hidden_ND = hidden_ND.double().requires_grad_()
    logq_NV = (hidden_ND @ head_VD.double().T).log_softmax(dim=1)
    logp_NV = (teacher_ND.double() @ head_VD.double().T).log_softmax(dim=1)
    kl = (logp_NV.exp() * (logp_NV - logq_NV)).sum()
    kl.backward()
    assert hidden_ND.grad is not None
    return kl.item(), hidden_ND.grad
