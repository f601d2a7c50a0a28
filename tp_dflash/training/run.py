"""A whole run on one rank, top to bottom: context, role, evaluation before, steps, evaluation after, export.

In: a configuration, a placement, this process's rank. Out: a run folder with metrics, checkpoints, an export and a report.
Every rank passes the same points in the same order; what each does there follows from its role.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from tp_dflash.config.run import RunConfig
from tp_dflash.evaluation import EvaluationReport, report_table
from tp_dflash.formats import write_zlab
from tp_dflash.parallel import StopRequests
from tp_dflash.placement import Placement
from tp_dflash.target import Target
from tp_dflash.training.course import Cursor
from tp_dflash.training.drafter_role import DrafterRole
from tp_dflash.training.fault_log import append_fault
from tp_dflash.training.feature_cache import needs_target
from tp_dflash.training.head_only_role import HeadOnlyRole
from tp_dflash.training.memory_trouble import check_memory, explain
from tp_dflash.training.publish import published_drafter
from tp_dflash.training.reporter import Reporter
from tp_dflash.training.run_context import RunContext, build_context
from tp_dflash.training.run_evaluation import RunEvaluation
from tp_dflash.training.startup import startup_lines
from tp_dflash.training.target_role import TargetRole, load_target, open_source

Role = DrafterRole | HeadOnlyRole | TargetRole


def run_training(
    config: RunConfig,
    placement: Placement,
    rank: int,
    argv: Sequence[str],
    stop: StopRequests | None = None,
    force: bool = False,
) -> bool:
    """Train to the end of the course; to be called by every rank of an initialised default process group.

    stop: who asks the run to stop. force: start although the memory plan says no. False where it stopped early, saved, and
    was not evaluated.
    """
    context = build_context(config, placement, rank, argv, stop)
    if context.device.type == "cuda" and not force:
        gpu_bytes = torch.cuda.get_device_properties(context.device).total_memory
        check_memory(config, placement, gpu_bytes)
    context.log.say(f"starts at step {context.course.cursor.step} of {context.course.total_steps}")
    try:
        return _train(context)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise explain(error, context.phase, context.place.role, config, placement, context.device) from error


def _train(context: RunContext) -> bool:
    target = load_target(context) if context.place.is_target and needs_target(context.config) else None
    with ExitStack() as stack:
        reporter = stack.enter_context(_open_reporter(context)) if context.is_reporter else None
        role = _take_role(context, target, reporter, stack)
        evaluation = _Evaluations(context, RunEvaluation(context, target), role, reporter)
        if context.config.evaluation.before_training and context.course.cursor.step == 0:
            evaluation.at(0)
        with _at_work(context):
            finished = role.run(evaluation.between_steps)
        if not finished:
            _tell_stop(context, reporter)
            return False
        evaluation.at(context.course.total_steps)
        if isinstance(role, DrafterRole):
            _publish(context, role, evaluation)
    return True


def _at_work(context: RunContext) -> AbstractContextManager[None]:
    return nullcontext() if context.stop is None else context.stop.at_work()


def _at_rest(context: RunContext) -> AbstractContextManager[None]:
    return nullcontext() if context.stop is None else context.stop.at_rest()


def _tell_stop(context: RunContext, reporter: Reporter | None) -> None:
    context.log.say("stopped as asked; the state is saved")
    if reporter is not None:
        reporter.say("stopped as asked and saved; the same command goes on from here")
        step = reporter.steps_done
        append_fault(context.folder.faults, "stopped", step, f"stopped as asked after step {step}, saved")


def _open_reporter(context: RunContext) -> Reporter:
    course = context.course
    reporter = Reporter(context.folder, course.cursor.step, course.total_steps, context.config.logging)
    for line in startup_lines(context):
        reporter.say(line)
    return reporter


def _take_role(context: RunContext, target: Target | None, reporter: Reporter | None, stack: ExitStack) -> Role:
    if context.place.is_drafter:
        source = open_source(context, target)
        stack.enter_context(source)
        return DrafterRole(context, source, reporter)
    if target is not None:
        return stack.enter_context(TargetRole(context, target))
    return HeadOnlyRole(context)


class _Evaluations:
    """Evaluates at the steps that the configuration names, and keeps what was found."""

    def __init__(self, context: RunContext, evaluation: RunEvaluation, role: Role, reporter: Reporter | None) -> None:
        self.context, self.evaluation, self.role, self.reporter = context, evaluation, role, reporter
        self.reports: dict[int, EvaluationReport] = {}

    def at(self, step: int) -> None:
        """Evaluate after ``step`` steps; on all ranks at once. What was trained is saved before, for this may take long."""
        if not self.evaluation.wanted:
            return
        drafter = self.role if isinstance(self.role, DrafterRole) else None
        if drafter is not None and step > 0:
            drafter.saved_now()
        self.context.phase.enter("evaluation")
        with _at_rest(self.context):
            report = self.evaluation.run(drafter.full_tensors if drafter is not None else None, step)
        if report is None:
            return
        self.reports[step] = report
        if drafter is not None:
            drafter.writer.note_acceptance(step, report.acceptance_length)
        if self.reporter is not None:
            self.reporter.console.print(report_table(report))
            self.reporter.log_evaluation(step, report.figures())

    def between_steps(self, cursor: Cursor) -> bool:
        """Evaluate where the configuration asks for it; never ends the run."""
        every, last = self.context.config.evaluation.every_steps, self.context.course.total_steps
        if every is not None and cursor.step % every == 0 and cursor.step != last:
            self.at(cursor.step)
        return False

    def results(self) -> dict[str, Any]:
        """Acceptance length at the first and last evaluated step, for the report and the model card."""
        if not self.reports:
            return {}
        first, last = min(self.reports), max(self.reports)
        found = {"acceptance_after": self.reports[last].acceptance_length}
        return found if first == last else {"acceptance_before": self.reports[first].acceptance_length, **found}


def _publish(context: RunContext, role: DrafterRole, evaluation: _Evaluations) -> None:
    """Export the drafter and write the run's report; all drafter ranks gather, the first one writes."""
    tensors = role.full_tensors()
    if not context.is_reporter:
        return
    results = evaluation.results()
    drafter = published_drafter(
        context.config,
        context.facts,
        context.shape,
        context.data,
        tensors,
        steps=context.course.total_steps,
        results=results,
        dtype=context.config.checkpoint.export_dtype,
    )
    write_zlab(context.folder.export, drafter)
    report = {
        **results,
        "tokens_per_second": role.tokens_per_second,
        "steps": context.course.total_steps,
        "export": str(context.folder.export),
        "evaluations": {str(step): report.to_json() for step, report in evaluation.reports.items()},
    }
    append_fault(context.folder.faults, "finished", context.course.total_steps, f"exported to {context.folder.export}")
    context.folder.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    assert role.reporter is not None
    role.reporter.say(f"exported to {context.folder.export}; report in {context.folder.report}")
