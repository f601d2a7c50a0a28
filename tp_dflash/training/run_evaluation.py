"""Decode held-out prompts with the live drafter on the target ranks, which hold the target anyway.

In: the drafter's whole tensors from the drafter ranks. Out: one report, the same on every rank. All ranks take part at the
same step of the plan; drafter ranks wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tp_dflash.drafter import Drafter, load_parameters, parameter_shapes
from tp_dflash.evaluation import EvaluationReport, PromptSet, evaluate_drafter, read_prompt_set
from tp_dflash.parallel.decision import decided_by_first
from tp_dflash.target import Target, read_head_rows
from tp_dflash.training.run_context import RunContext, run_tokenizer


class RunEvaluation:
    """Evaluates whenever every rank calls ``run``; prompts are read once, at the start."""

    def __init__(self, context: RunContext, target: Target | None) -> None:
        self.context = context
        self.target = target
        self.prompt_sets: list[PromptSet] = decided_by_first(self._read_prompts, context.groups.everyone)

        data, limit = context.data.validation, context.config.evaluation.offline_documents
        self.documents = [data.document(i) for i in range(min(limit, data.num_documents))] if data is not None else []

    @property
    def wanted(self) -> bool:
        """Whether there is anything to decode."""
        return bool(self.prompt_sets)

    def run(self, full_tensors: Callable[[], dict[str, Tensor]] | None, step: int) -> EvaluationReport | None:
        """Report on the drafter as it stands after ``step`` steps; drafter ranks give ``full_tensors``.

        None where there are no prompts. Weights travel by broadcast, one tensor at a time, without adjoint.
        """
        if not self.wanted:
            return None
        context, placement = self.context, self.context.placement
        tensors = self._shared_tensors(full_tensors() if full_tensors is not None else None)
        report: EvaluationReport | None = None
        if self.target is not None:
            report = self._decode(tensors, self.target, step)
        outcome: list[Any] = [report]
        dist.broadcast_object_list(outcome, src=placement.targets[0], group=context.groups.everyone)
        return outcome[0]

    def _shared_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The first drafter rank's tensors on every rank, fp32 on the CPU."""
        context = self.context
        shared = {}
        for name, size in parameter_shapes(context.shape).items():
            tensor = torch.empty(size) if tensors is None else tensors[name].float().contiguous()
            dist.broadcast(tensor, src=context.placement.drafters[0], group=context.groups.everyone)
            shared[name] = tensor
        return shared

    def _decode(self, tensors: dict[str, Tensor], target: Target, step: int) -> EvaluationReport:
        context, facts = self.context, self.context.facts
        drafter = Drafter(context.shape).to(device=context.device, dtype=facts.dtype)
        load_parameters(drafter, tensors)
        head_VD = read_head_rows(target.config, facts, 0, facts.vocab_size, context.device)
        return evaluate_drafter(
            drafter,
            target,
            head_VD,
            self.prompt_sets,
            context.config.evaluation,
            documents=self.documents,
            group=context.groups.targets,
            names=(f"step {step}", facts.name),
            progress=_told if context.rank == context.placement.targets[0] else None,
        )

    def _read_prompts(self) -> list[PromptSet]:
        config = self.context.config
        if not config.evaluation.prompts:
            return []
        tokenizer = run_tokenizer(config)
        return [read_prompt_set(prompts, tokenizer, config.data.template) for prompts in config.evaluation.prompts]


def _told(name: str, done: int, total: int) -> None:
    """A line, not a bar: the terminal's bar belongs to another rank."""
    print(f"evaluating {name}: {done} of {total} prompts of this rank", flush=True)
