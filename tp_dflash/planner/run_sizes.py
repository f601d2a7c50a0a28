"""Every number that memory and time of a run follow from, read from where the run itself reads it.

In: a configuration and a placement. Out: one frozen RunSizes; the target's sizes come from ``read_target_facts`` and the
drafter's from ``DrafterShape``, exactly as at the start of training. No weights, no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from tp_dflash.config.run import RunConfig
from tp_dflash.drafter import DrafterShape, check_mask_token
from tp_dflash.placement import Placement, parse_gpus
from tp_dflash.planner.decoder_parameters import DecoderParameters
from tp_dflash.target import TargetFacts, check_shares, read_target_facts

_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class RunSizes:
    """One run's sizes. Letters as everywhere: T, A, B, N, U, V, D, K."""

    config: RunConfig
    placement: Placement
    facts: TargetFacts
    shape: DrafterShape
    decoder: DecoderParameters

    @staticmethod
    def of(config: RunConfig, placement: Placement) -> RunSizes:
        """ValueError by name where target, drafter, mask token or placement cannot go together."""
        facts = read_target_facts(config.target)
        shape = DrafterShape.of(config.drafter, facts)
        check_mask_token(shape.mask_token_id, facts.vocab_size, facts.special_token_ids)
        _check_target(facts, config.placement.target_tensor_parallel)
        _check_pack(config, facts)
        return RunSizes(config, placement, facts, shape, DecoderParameters(config.target, facts))

    def with_config(self, config: RunConfig, placement: Placement) -> RunSizes:
        """The same target under other settings: facts are read again only where the target section changed."""
        if config.target.path != self.config.target.path or config.target.shape != self.config.target.shape:
            return RunSizes.of(config, placement)
        _check_target(self.facts, config.placement.target_tensor_parallel)
        return RunSizes(config, placement, self.facts, DrafterShape.of(config.drafter, self.facts), self.decoder)

    @staticmethod
    def drafter_gpus(config: RunConfig) -> set[int]:
        """Local GPU numbers that train."""
        return parse_gpus("placement.drafter", config.placement.drafter)

    @staticmethod
    def head_gpus(config: RunConfig) -> set[int]:
        """Local GPU numbers with a head shard."""
        drafters = RunSizes.drafter_gpus(config)
        return drafters | (parse_gpus("placement.head", config.placement.head) if config.placement.head else set())

    @staticmethod
    def target_gpus(config: RunConfig) -> set[int]:
        """Local GPU numbers that run the target; those that train where it is colocated."""
        target = config.placement.target
        return RunSizes.drafter_gpus(config) if target == "colocated" else parse_gpus("placement.target", target)

    @staticmethod
    def gpus(config: RunConfig) -> set[int]:
        """All local GPU numbers that the placement uses: as many as a node must have ranks."""
        return RunSizes.head_gpus(config) | RunSizes.target_gpus(config)

    @property
    def tokens(self) -> int:
        """T: context rows that a batch is padded to."""
        return self.config.data.token_budget

    @property
    def anchors(self) -> int:
        """A."""
        return self.config.anchors.per_pack

    @property
    def rows(self) -> int:
        """N = A x B: block rows, anchors' own included."""
        return self.anchors * self.shape.block_size

    @property
    def trained_rows(self) -> int:
        """Rows that can have a label: A x (B - 1), or N with next-token labels."""
        return self.anchors * (self.shape.block_size - self.shape.first_predicted)

    @property
    def most_teacher_rows(self) -> int:
        """The most unique teacher rows that a pack can have: every trained row's own, or every token."""
        return min(self.tokens, self.trained_rows)

    @property
    def keys(self) -> int:
        """M = T + N: rows that attention may look at."""
        return self.tokens + self.rows

    @property
    def num_drafters(self) -> int:
        return len(self.placement.drafters)

    @property
    def shard_ranks(self) -> int:
        """Drafter ranks that one copy of the drafter's state is spread over."""
        return len(self.placement.shard_groups[0])

    @property
    def num_copies(self) -> int:
        """Copies of the drafter's state."""
        return len(self.placement.shard_groups)

    @property
    def num_targets(self) -> int:
        return len(self.placement.targets)

    @property
    def target_ranks(self) -> int:
        """Ranks that hold one target together."""
        return self.config.placement.target_tensor_parallel

    @property
    def head_ranks(self) -> int:
        """Ranks that share one copy of the lm_heads."""
        return len(self.placement.head_groups[0].ranks)

    @property
    def row_ranks(self) -> int:
        """Of those, ranks that bring rows."""
        return len(self.placement.head_groups[0].drafters)

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the drafter's matrix products."""
        return _BYTES[self.config.training.compute_dtype]

    @property
    def target_bytes(self) -> int:
        """Bytes of a number in the target's weights and features."""
        return _BYTES[self.config.target.dtype]

    @property
    def target_parameters(self) -> int:
        """Parameters of the target's text decoder, embedding table included, lm_head not."""
        return self.decoder.total

    @property
    def target_share(self) -> int:
        """Those of them that one rank holds."""
        return self.decoder.share(self.target_ranks)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one drafter layer."""
        root = (self.shape.feature_size + 2) * self.shape.hidden_size
        return (self.shape.num_parameters - root) // self.shape.num_layers


def _check_target(facts: TargetFacts, num_ranks: int) -> None:
    check_shares(facts, num_ranks)
    if facts.num_heads % facts.num_kv_heads:
        raise ValueError(
            f"{facts.name}: expected query heads in whole groups, got {facts.num_heads} over {facts.num_kv_heads} key/value "
            "heads; correct the target's configuration"
        )


def _check_pack(config: RunConfig, facts: TargetFacts) -> None:
    if config.data.max_length > facts.max_positions:
        raise ValueError(
            f"data.max_length: expected at most the target's {facts.max_positions} positions, got "
            f"{config.data.max_length}; lower data.max_length"
        )
