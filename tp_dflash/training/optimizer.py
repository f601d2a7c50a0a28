"""AdamW on fp32 masters, and the learning rate as a function of the step.

In: the drafter's sharded fp32 parameters. Out: an optimizer that can leave out a step without asking the host, and a rate
that depends on the step and the plan's length only, so that a resumed run stands where it would have stood.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tp_dflash.config.optimizer import OptimizerConfig


def build_optimizer(drafter: nn.Module, config: OptimizerConfig) -> AdamW:
    """Fused AdamW; matrices decay, vectors (norm weights) do not. Parameters must be fp32 masters."""
    low = [name for name, parameter in drafter.named_parameters() if parameter.dtype != torch.float32]
    if low:
        raise ValueError(f"expected fp32 master weights, got another dtype for {low[0]}; shard the drafter in fp32")
    matrices = [parameter for parameter in drafter.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in drafter.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: float, total_steps: float, config: OptimizerConfig) -> float:
    """Rate of step 0..total-1: rises linearly over the warm-up, then falls along half a cosine to the final ratio.

    After a change of the step's size both numbers need not be whole (see ``Course``).
    """
    warmup = math.ceil(config.warmup_ratio * total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1.0, total_steps - 1 - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    low = config.final_learning_rate_ratio
    return config.learning_rate * (low + (1 - low) * cosine)


def optimizer_step(optimizer: AdamW, rate: float, skip: Tensor) -> None:
    """Update at ``rate``; where the device scalar ``skip`` is 1.0 parameters, moments and step counts stay as they are.

    The fused kernels read ``found_inf`` on the device, as they do under a gradient scaler, so nothing waits for the host.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
