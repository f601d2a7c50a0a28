"""A drafter rank's part of a run: build the step, run the loop, show and save on the way.

In: a RunContext and a source of features. Out: a trained drafter (sharded over all drafter ranks) and its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tp_dflash.blocks import block_position_weights
from tp_dflash.drafter import Drafter, load_parameters
from tp_dflash.formats import starting_tensors
from tp_dflash.parallel.device import peak_memory_bytes
from tp_dflash.streams import bottleneck
from tp_dflash.target import read_embedding_rows
from tp_dflash.training.checkpoint import load_training, training_tensors
from tp_dflash.training.checkpoint_writer import CheckpointWriter
from tp_dflash.training.course import BetweenSteps, Cursor
from tp_dflash.training.drafter_loop import DrafterLoop, FeatureSource, StepDone
from tp_dflash.training.drafter_step import DrafterStep, StepSettings
from tp_dflash.training.fault_log import Kind, append_fault
from tp_dflash.training.heads import load_heads
from tp_dflash.training.heartbeat import Heartbeat, read_heartbeats
from tp_dflash.training.optimizer import DrafterOptimizer
from tp_dflash.training.pack_feed import PackFeed
from tp_dflash.training.reporter import Reporter
from tp_dflash.training.run_context import RunContext, state_of
from tp_dflash.training.sharding import drafter_mesh, shard_drafter

_MOST_LISTED = 20


def build_drafter(context: RunContext) -> Drafter:
    """The network, sharded over the drafter ranks, its fp32 parameters initialised the same whatever the ranks."""
    config = context.config.drafter
    with torch.device("meta"):
        drafter = Drafter(
            context.shape,
            attention=config.attention,
            activation_checkpointing=config.activation_checkpointing,
            compile_layers=config.compile,
        )
    mesh = drafter_mesh(context.placement, context.groups, context.device)
    shard_drafter(drafter, list(drafter.layers), mesh, context.compute_dtype)
    drafter.to_empty(device=context.device)
    if config.init_from is None:
        drafter.initialise(context.config.training.seed, config.init_std)
    else:
        load_parameters(drafter, starting_tensors(Path(config.init_from), context.shape))
    return drafter


def build_step(context: RunContext) -> DrafterStep:
    """Drafter, optimizer, head shards and settings, with the state of the checkpoint if there is one."""
    groups, config = context.groups, context.config
    assert groups.drafters is not None
    assert groups.head is not None
    assert groups.workers is not None
    drafter = build_drafter(context)
    optimizer = DrafterOptimizer(drafter, config.optimizer)
    if context.checkpoint is not None:
        load_training(context.checkpoint, drafter, optimizer, groups.drafters)
    ranks = context.head_ranks
    heads = load_heads(
        config.target, context.facts, ranks.index(context.rank), len(ranks), context.device, context.compute_dtype
    )
    mask_1D = read_embedding_rows(config.target, context.facts, [context.shape.mask_token_id], context.device)
    return DrafterStep(
        drafter,
        optimizer,
        heads,
        mask_1D[0].to(context.compute_dtype),
        step_settings(context),
        drafters=groups.drafters,
        copies=len(context.placement.shard_groups),
        head_group=groups.head,
        workers=groups.workers,
    )


def step_settings(context: RunContext) -> StepSettings:
    """The parts of the configuration that the mathematics of a step depends on."""
    config, objective = context.config, context.config.objective
    # With dpace the head makes the weights itself; here they only mark the rows that are trained.
    scheme: Literal["decay", "uniform"] = "decay" if objective.weights == "decay" else "uniform"
    return StepSettings(
        objective=objective,
        weights_B=block_position_weights(
            context.shape.block_size, scheme, objective.gamma, context.shape.first_predicted
        ),
        token_budget=config.data.token_budget,
        num_blocks=config.anchors.per_pack,
        head_chunk_rows=config.training.head_chunk_rows,
        logits_precision=config.training.logits_precision,
        max_grad_norm=config.optimizer.max_grad_norm,
    )


class DrafterRole:
    """Trains from the cursor to the last step."""

    def __init__(self, context: RunContext, source: FeatureSource, reporter: Reporter | None) -> None:
        self.context = context
        self.reporter = reporter
        self.source = source
        context.phase.enter("loading")
        self.step = build_step(context)
        self.step.phase = context.phase
        assert context.groups.savers is not None
        self.writer = CheckpointWriter(
            context.folder.checkpoints,
            context.config.checkpoint,
            context.groups.savers,
            context.is_reporter,
            self._report_failed_save,
            first_step=context.course.cursor.step,
        )
        self._cursor = context.course.cursor
        self._since = _Interval()
        self._whole = _Interval()

    @property
    def tokens_per_second(self) -> float:
        """Context tokens trained on a second, over all steps of this process."""
        return self._whole.rates()["tokens_per_second"]

    def run(self, between_steps: BetweenSteps) -> bool:
        """Every step that is left; the last one is always saved. False if all ranks agreed to stop early."""
        context = self.context
        feed = PackFeed(
            context.course,
            context.data.train,
            context.rules,
            lambda pack_id: context.placement.drafter_of(pack_id) == context.rank,
        )
        loop = DrafterLoop(
            context.config.training.accumulation,
            context.config.optimizer,
            context.course,
            feed,
            self.source,
            self.step,
            context.head_ranks,
            context.stop_wanted,
        )
        loop.run(lambda done: self._after_step(done, between_steps))
        if self.reporter is not None and not context.placement.colocated:
            self.reporter.say(f"streams: {bottleneck(self.source.meters(), len(context.placement.targets))}")
        context.phase.enter("saving")
        self.writer.finish()
        return self._cursor.step == context.course.total_steps

    def full_tensors(self) -> dict[str, Tensor]:
        """The drafter's whole parameters, fp32 on the CPU, on every drafter rank (all of them must call)."""
        return {name: _whole(parameter).cpu() for name, parameter in self.step.drafter.named_parameters()}

    def _after_step(self, done: StepDone, between_steps: BetweenSteps) -> bool:
        self._since.add(done)
        self._whole.add(done)
        self._cursor = done.after
        steps, config = done.after.step, self.context.config
        is_last = steps == self.context.course.total_steps or done.facts.stop
        if steps % config.logging.every_steps == 0 or is_last:
            self._log(done)
        elif self.reporter is not None:
            self.reporter.advance(steps)
        if steps % config.checkpoint.every_steps == 0 or is_last:
            self.save(done.after)
        if done.facts.stop and steps < self.context.course.total_steps:
            # On disk before the streams are given up: target ranks are ended as soon as they miss us.
            self.writer.finish()
            return True
        return between_steps(done.after)

    def _log(self, done: StepDone) -> None:
        """Read the meters (the one place where a step waits for the device), write, and check that training is sane."""
        context, groups = self.context, self.context.groups
        assert groups.drafters is not None
        figures = self.step.meters.read(groups.drafters)
        self.step.check_head_calls(figures["skipped_steps"] != 0)
        figures |= self._tell_trouble(figures, done.after.step)
        peak = peak_memory_bytes(context.device)
        waited = self.source.meters().drafter_waited
        beat = Heartbeat(context.rank, context.place.role, context.place.gpu, done.after.step, peak, waited)
        beat.write(context.folder.ranks)
        longest = figures["longest_skipped_run"]
        assert isinstance(longest, float)
        if self.reporter is not None:
            beats = read_heartbeats(context.folder.ranks)
            memory = {str(beat.rank): beat.peak_bytes / 2**30 for beat in beats}
            waits = {str(beat.rank): beat.waited_seconds for beat in beats}
            self.reporter.log(
                done.after.step,
                figures
                | self._since.rates()
                | {
                    "learning_rate": done.rate,
                    "epoch": done.after.epoch,
                    "peak_gib_by_rank": memory,
                    "waited_by_rank": waits,
                },
            )
        self._since = _Interval()
        if longest >= context.config.training.max_bad_steps:
            raise RuntimeError(
                f"expected finite gradients, got {longest:.0f} steps in a row without; all were skipped. Lower "
                "optimizer.learning_rate or look at the last documents"
            )

    def _tell_trouble(self, figures: Mapping[str, object], step: int) -> dict[str, float | list[float]]:
        """Name the documents of skipped steps and those that were dropped; how many were dropped since the last reading."""
        context, drafters = self.context, self.context.groups.drafters
        assert drafters is not None
        skipped, dropped = self.step.trouble.read(figures["skipped_steps"] != 0, drafters, context.device)
        for one in skipped:
            text = f"step {one.step + 1} was skipped: no finite gradient; documents {_listed(one.documents)}"
            context.log.say(text)
            self._tell("step skipped", one.step + 1, text, documents=list(one.documents))
        if dropped:
            text = f"{len(dropped)} documents dropped: the target gave no finite features; documents {_listed(dropped)}"
            context.log.say(text)
            self._tell("documents dropped", step, text, documents=dropped)
        return {"dropped_documents": float(len(dropped))}

    def _tell(self, kind: Kind, step: int, text: str, **details: object) -> None:
        """For the person watching and the report: once for the run."""
        if self.reporter is not None:
            self.reporter.say(text)
            append_fault(self.context.folder.faults, kind, step, text, **details)

    def _report_failed_save(self, text: str) -> None:
        self.context.log.warn(text)
        if self.context.is_reporter:
            append_fault(self.context.folder.faults, "save failed", self._cursor.step, text)

    def save(self, cursor: Cursor) -> None:
        """Begin a checkpoint of the state after ``cursor.step`` steps; all drafter ranks together."""
        optimizer = self.step.optimizer
        tensors = training_tensors(self.step.drafter, optimizer)
        state = state_of(cursor, self.context.course, self.context.identity, optimizer.updates)
        self.writer.save(cursor.step, tensors, state)

    def saved_now(self) -> None:
        """Have the present state on disk: what follows may take long and must not cost any step."""
        if self.writer.saved_step != self._cursor.step:
            self.writer.collect()
        if self.writer.saved_step != self._cursor.step:
            self.save(self._cursor)
            self.writer.collect()


class _Interval:
    """What happened since the last logged step: for rates."""

    def __init__(self) -> None:
        self.seconds, self.tokens, self.rows = 0.0, 0, 0

    def add(self, done: StepDone) -> None:
        self.seconds += done.seconds
        self.tokens += done.facts.num_tokens
        self.rows += done.facts.num_rows

    def rates(self) -> dict[str, float]:
        seconds = max(self.seconds, 1e-9)
        rates = {"tokens_per_second": self.tokens / seconds, "rows_per_second": self.rows / seconds}
        return rates | {"step_seconds": self.seconds}


def _whole(parameter: Tensor) -> Tensor:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()


def _listed(names: Sequence[int]) -> str:
    return ", ".join(map(str, names[:_MOST_LISTED])) + (", ..." if len(names) > _MOST_LISTED else "")
