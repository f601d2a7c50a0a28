"""Whether a configuration fits its GPUs, what else would, and what to change if it does not.

``check_fits`` is what training asks before it loads anything. Nothing here touches a GPU or a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tp_dflash.config.load import dump_config, parse_config
from tp_dflash.config.run import RunConfig
from tp_dflash.placement import Placement
from tp_dflash.planner.byte_sizes import in_gib
from tp_dflash.planner.calibration import Calibration
from tp_dflash.planner.head_memory import chunk_lines, dense_loss_bytes
from tp_dflash.planner.remedies import Remedy, remedies
from tp_dflash.planner.role_plan import RolePlan, plan_roles
from tp_dflash.planner.run_sizes import RunSizes

# Share of a GPU that the allocator may lose between its blocks; measured with expandable segments.
ALLOCATOR_LOSS = 0.02


@dataclass(frozen=True)
class TriedRemedy:
    """A remedy and what it comes to: bytes saved on the fullest rank, and whether every role fits then."""

    remedy: Remedy
    saving: int
    fits: bool


@dataclass(frozen=True)
class Verdict:
    """A configuration on GPUs of ``gpu_bytes``; ``fits`` says whether every role's peak leaves the allocator its loss."""

    sizes: RunSizes
    calibration: Calibration
    gpu_bytes: int

    @cached_property
    def roles(self) -> tuple[RolePlan, ...]:
        return plan_roles(self.sizes, self.calibration)

    @property
    def fullest(self) -> RolePlan:
        return max(self.roles, key=lambda role: role.peak_bytes)

    @property
    def usable_bytes(self) -> int:
        return int(self.gpu_bytes * (1 - ALLOCATOR_LOSS))

    @property
    def fits(self) -> bool:
        return self.fullest.peak_bytes <= self.usable_bytes

    @property
    def dense_peak_bytes(self) -> int:
        """Peak of a rank that trains, were its chunks of logits the whole logits of its rows."""
        chunks = sum(line.num_bytes for line in chunk_lines(self.sizes))
        training = [role for role in self.roles if "drafter" in role.role]
        return max(role.held_at("head") for role in training) - chunks + dense_loss_bytes(self.sizes)[0]

    @cached_property
    def tried(self) -> tuple[TriedRemedy, ...]:
        """Every change that saves something on the fullest rank, alone, in the order in which it costs least."""
        tried = []
        for remedy in remedies(self.sizes, self.fullest.role):
            changed = self._with(remedy.changes)
            saving = self.fullest.peak_bytes - changed.fullest.peak_bytes
            if saving > 0:
                tried.append(TriedRemedy(remedy, saving, changed.fits))
        return tuple(tried)

    @cached_property
    def together(self) -> tuple[Remedy, ...] | None:
        """The first of those changes that fit together, taken in order; None if all of them do not."""
        taken: list[Remedy] = []
        current = self
        while not current.fits:
            if not current.tried:
                return None
            best = next((tried for tried in current.tried if tried.fits), current.tried[0])
            taken.append(best.remedy)
            current = current._with(best.remedy.changes)
        return tuple(taken)

    @cached_property
    def largest_anchors(self) -> int:
        """Most anchors a pack that fit with everything else as it is; 0 if not even one does."""
        return _largest(lambda anchors: self._with({"anchors.per_pack": anchors}).fits, self.sizes.tokens - 1)

    def summary(self) -> str:
        """One line: the fullest role, its peak, the GPU."""
        fullest = self.fullest
        words = "fits" if self.fits else "does not fit"
        return (
            f"{words}: {fullest.role} ranks peak at {in_gib(fullest.peak_bytes)} of {in_gib(self.gpu_bytes)}, of which "
            f"{in_gib(self.usable_bytes)} are usable"
        )

    def _with(self, changes: dict[str, object]) -> Verdict:
        config = changed_config(self.sizes.config, changes)
        placement = self.sizes.placement
        if any(key.startswith("placement.") for key in changes):
            per_node = len(RunSizes.gpus(config))
            placement = Placement.resolve(config.placement, per_node * placement.num_nodes, per_node)
        return Verdict(self.sizes.with_config(config, placement), self.calibration, self.gpu_bytes)


def check_fits(
    config: RunConfig, placement: Placement, gpu_bytes: int, calibration: Calibration | None = None
) -> Verdict:
    """The verdict of a run on GPUs of ``gpu_bytes``; ValueError where the shapes are wrong."""
    return Verdict(RunSizes.of(config, placement), calibration or Calibration(), gpu_bytes)


def changed_config(config: RunConfig, changes: dict[str, object]) -> RunConfig:
    """The configuration with other values under ``section.key``, checked again."""
    settings = dump_config(config)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        settings[section][name] = value
    return parse_config(settings)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
