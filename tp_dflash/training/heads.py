"""The head shards of one rank: the teacher's, and the one that the drafter's hidden rows meet.

In: the target's files and this rank's vocab range. Out: frozen shards on the device in the compute dtype. With a frozen
head both are one tensor: the drafter is trained against the target's own lm_head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tp_dflash.config.target import TargetConfig
from tp_dflash.head import HeadShard, VocabRange
from tp_dflash.target import TargetFacts, read_head_rows


@dataclass(frozen=True, eq=False)
class HeadPair:
    """What ``sharded_head_loss`` needs of the lm_heads."""

    drafter: HeadShard
    teacher: HeadShard


def load_heads(
    config: TargetConfig, facts: TargetFacts, place: int, num_shards: int, device: torch.device, dtype: torch.dtype
) -> HeadPair:
    """Read the rows of shard ``place`` of ``num_shards`` and nothing else of the target."""
    vocab = VocabRange.split(facts.vocab_size, num_shards)[place]
    weight_vD = read_head_rows(config, facts, vocab.start, vocab.stop, device).to(dtype)
    shard = HeadShard(weight_vD, vocab)
    return HeadPair(drafter=shard, teacher=shard)
