"""The drafter's optimiser on fp32 masters, and the learning rate as a function of the step.

In: the drafter's sharded fp32 parameters. Out: an optimiser that can leave out a step without asking the host, and a rate
that depends on the step and the plan's length only, so that a resumed run stands where it would have stood.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tp_dflash.config.optimizer import OptimizerConfig
from tp_dflash.training.muon import Muon


class DrafterOptimizer:
    """Fused AdamW, and Muon for the matrices where the configuration says so; one schedule for both.

    Matrices decay, vectors (norm weights) do not. Parameters must be fp32 masters.
    """

    def __init__(self, drafter: nn.Module, config: OptimizerConfig) -> None:
        low = [name for name, parameter in drafter.named_parameters() if parameter.dtype != torch.float32]
        if low:
            raise ValueError(f"expected fp32 master weights, got another dtype for {low[0]}; shard the drafter in fp32")
        matrices = [parameter for parameter in drafter.parameters() if parameter.ndim >= 2]
        vectors = [parameter for parameter in drafter.parameters() if parameter.ndim < 2]
        by_muon = matrices if config.name == "muon" else []
        groups = [
            {"params": [] if by_muon else matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        rate, decay = config.learning_rate, config.weight_decay
        self.adamw = AdamW(groups, lr=rate, betas=config.betas, eps=config.eps, fused=True) if groups else None
        self.muon = Muon(by_muon, lr=rate, momentum=config.momentum, weight_decay=decay) if by_muon else None
        self._parameters = [*matrices, *vectors]

    def step(self, rate: float, skip: Tensor) -> None:
        """Update at ``rate``; where the device scalar ``skip`` is 1.0 parameters, moments and counts stay as they are.

        AdamW's fused kernels read ``found_inf`` on the device, as they do under a gradient scaler; nothing waits for the host.
        """
        for optimizer in (self.adamw, self.muon):
            for group in optimizer.param_groups if optimizer is not None else ():
                group["lr"] = rate
        if self.muon is not None:
            self.muon.skip = skip
            self.muon.step()
        if self.adamw is not None:
            self.adamw.found_inf = skip  # type: ignore[attr-defined]
            self.adamw.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Moments of one parameter by their names in a checkpoint; those that do not exist yet are made as zeros."""
        state = self._state(parameter)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in self._moment_names(parameter).values():
                state[name] = torch.zeros_like(parameter)
        return {kind: state[name] for kind, name in self._moment_names(parameter).items()}

    def restore(self, parameter: Tensor, moments: dict[str, Tensor], updates: float) -> None:
        """Put back what ``moments`` gave, after so many updates."""
        state = self._state(parameter)
        for kind, name in self._moment_names(parameter).items():
            state[name] = moments[kind]
        state["step"] = torch.full((), updates, dtype=torch.float32, device=parameter.device)

    @property
    def updates(self) -> int:
        """Updates that were not skipped; waits for the device."""
        return int(self._state(self._parameters[0])["step"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        optimizer = self.muon if self._moves_by_muon(parameter) else self.adamw
        assert optimizer is not None
        return optimizer.state[parameter]

    def _moment_names(self, parameter: Tensor) -> dict[str, str]:
        names = {"moment1": "exp_avg"}
        return names if self._moves_by_muon(parameter) else {**names, "moment2": "exp_avg_sq"}

    def _moves_by_muon(self, parameter: Tensor) -> bool:
        return self.muon is not None and parameter.ndim >= 2


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
