"""What every rank of a run knows before it takes its role: settings, sizes, data, and where an earlier run stopped.

In: a configuration, a placement, this process's rank. Out: one RunContext, equal on all ranks but for rank, device and
groups. Whatever one rank finds out for all (prepared data, checkpoints) is told to the others, errors included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

import torch
from transformers import PreTrainedTokenizerBase

from tp_dflash.config.load import dump_config
from tp_dflash.config.run import RunConfig
from tp_dflash.data import BatchPlan, DataSplits, open_store, prepare_store, store_folder
from tp_dflash.data.tokenizer import load_tokenizer
from tp_dflash.drafter import DrafterShape
from tp_dflash.parallel import Groups, StopRequests, open_groups, pick_device
from tp_dflash.parallel.decision import decided_by_first
from tp_dflash.placement import Placement, RankPlace
from tp_dflash.planner import RunSizes
from tp_dflash.target import TargetFacts
from tp_dflash.training.checkpoint import find_checkpoint
from tp_dflash.training.checkpoint_folder import CheckpointFolder
from tp_dflash.training.course import Course, Cursor, SchedulePoint
from tp_dflash.training.disk_space import check_space
from tp_dflash.training.fault_log import append_fault
from tp_dflash.training.pack_feed import LayoutRules
from tp_dflash.training.phase import Phase
from tp_dflash.training.rank_log import RankLog
from tp_dflash.training.run_folder import RunFolder
from tp_dflash.training.run_identity import run_identity
from tp_dflash.training.run_lock import lock_run


@dataclass(frozen=True, eq=False)
class RunContext:
    """Everything that the roles are built from.

    checkpoint: the one to go on from, None for a new run. identity: what its checkpoints carry to be known again. stop: None where nobody can ask the run to stop (measurements).
    lock: the first rank's hold on the run folder.
    """

    config: RunConfig
    placement: Placement
    place: RankPlace
    device: torch.device
    groups: Groups
    folder: RunFolder
    facts: TargetFacts
    shape: DrafterShape
    data: DataSplits
    rules: LayoutRules
    course: Course
    checkpoint: CheckpointFolder | None
    identity: str
    notices: tuple[str, ...]
    stop: StopRequests | None = None
    lock: TextIO | None = None
    phase: Phase = field(default_factory=Phase)

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def leads_target(self) -> bool:
        """Whether this rank is the one of its target that sends, or the only one."""
        return self.rank in self.placement.targets

    @property
    def is_reporter(self) -> bool:
        """Whether this rank shows and writes what all ranks found: the first drafter rank."""
        return self.rank == self.placement.drafters[0]

    @property
    def log(self) -> RankLog:
        """This rank's own log file."""
        return RankLog(self.folder.log_of(self.rank), f"rank {self.rank}, {self.place.role}, GPU {self.place.gpu}")

    def stop_wanted(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.stop is not None and self.stop.wanted

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.config.training.compute_dtype == "bfloat16" else torch.float32

    @property
    def head_ranks(self) -> tuple[int, ...]:
        return self.placement.head_group_of(self.rank).ranks


def build_context(
    config: RunConfig, placement: Placement, rank: int, argv: Sequence[str], stop: StopRequests | None = None
) -> RunContext:
    """Open groups, lock the run folder, read the target's facts and check all sizes against them, prepare or open the data, find the checkpoint; same errors on all ranks."""
    place = placement.places[rank]
    device = pick_device(place.gpu)
    groups = open_groups(placement, rank, device, config.training.timeout_seconds)
    folder = RunFolder(Path(config.training.run_folder))
    sizes = RunSizes.of(config, placement)
    facts, shape = sizes.facts, sizes.shape
    locks: list[TextIO] = []
    decided_by_first(lambda: locks.append(lock_run(folder.lock)), groups.everyone)
    world = f"{len(placement.places)} ranks on {placement.num_nodes} nodes"
    decided_by_first(lambda: folder.describe(argv, dump_config(config), world), groups.everyone)
    data = open_store(decided_by_first(lambda: _prepare(config), groups.everyone))
    _check_mask_unused(shape.mask_token_id, data)
    identity = decided_by_first(lambda: run_identity(config, facts, data), groups.everyone)
    checkpoint, skipped = find_checkpoint(folder.checkpoints, groups.everyone)
    cursor, schedule = Cursor(), None
    if checkpoint is not None:
        cursor, schedule = decided_by_first(lambda: _read_state(checkpoint, identity), groups.everyone)
    notices = (*skipped, *decided_by_first(lambda: check_space(folder.path, shape, config.checkpoint), groups.everyone))
    if rank == placement.drafters[0]:
        _tell_start(folder, cursor, skipped, world, checkpoint)
    plan = BatchPlan(
        data.train.length_D,
        config.data.token_budget,
        config.training.seed,
        len(placement.drafters) * config.training.accumulation,
        data.train.weight_D,
    )
    return RunContext(
        config=config,
        placement=placement,
        place=place,
        device=device,
        groups=groups,
        folder=folder,
        facts=facts,
        shape=shape,
        data=data,
        rules=LayoutRules.of(config, shape),
        course=Course(plan, config.training.epochs, config.training.max_steps, cursor, schedule),
        checkpoint=checkpoint,
        identity=identity,
        notices=notices,
        stop=stop,
        lock=locks[0] if locks else None,
    )


def run_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the training text: ``data.tokenizer``, else the target's."""
    name = config.data.tokenizer or config.target.path
    if name is None:
        raise ValueError(
            "data.tokenizer: expected a tokenizer for a target without files, got none; set data.tokenizer"
        )
    return load_tokenizer(name, config.target.trust_remote_code)


def state_of(cursor: Cursor, course: Course, identity: str, updates: int) -> dict[str, object]:
    """What a checkpoint keeps beside tensors.

    There is no random state: every draw is keyed by seed, epoch and document. No pack is in flight across a step's end: a
    step is all of its packs.
    """
    return {
        "cursor": asdict(cursor),
        "schedule": asdict(course.schedule_point(cursor.step)),
        "updates": updates,
        "identity": identity,
    }


def _prepare(config: RunConfig) -> Path:
    tokenizer = run_tokenizer(config)
    folder = store_folder(config.data, tokenizer)
    prepare_store(config.data, tokenizer, folder)
    return folder


def _check_mask_unused(mask_token_id: int, data: DataSplits) -> None:
    count = data.train.token_count(mask_token_id)
    if count:
        raise ValueError(
            f"drafter.mask_token_id: expected a token that never occurs in the data, got {mask_token_id}, which occurs "
            f"{count} times; choose another unused embedding row"
        )


def _tell_start(
    folder: RunFolder, cursor: Cursor, skipped: Sequence[str], world: str, checkpoint: CheckpointFolder | None
) -> None:
    for line in skipped:
        append_fault(folder.faults, "damaged checkpoint", cursor.step, line)
    if checkpoint is None:
        append_fault(folder.faults, "started", 0, f"new run on {world}")
    else:
        append_fault(folder.faults, "resumed", cursor.step, f"went on from {checkpoint.path.name} on {world}")


def _read_state(checkpoint: CheckpointFolder, identity: str) -> tuple[Cursor, SchedulePoint]:
    state = checkpoint.state()
    if state["identity"] != identity:
        raise ValueError(
            f"{checkpoint.path}: expected a checkpoint of this configuration's documents, target, drafter, anchors and seed, "
            "got another; choose another training.run_folder or restore the settings and files"
        )
    return Cursor(**state["cursor"]), SchedulePoint(**state["schedule"])
