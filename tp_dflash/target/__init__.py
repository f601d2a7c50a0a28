"""The frozen target model: what is known of it, which of its weights drafters read, and its features.

In: the target section of a run, block layouts, and the group of ranks that share a target too large for one. Out: TargetFacts,
rows of lm_head and embedding, feature batches. It knows nothing of drafters or how features travel.
"""

from tp_dflash.target.buckets import plan_buckets
from tp_dflash.target.facts import TargetFacts, read_target_facts
from tp_dflash.target.loading import count_decoder_parameters
from tp_dflash.target.rows import read_embedding_rows, read_head_rows
from tp_dflash.target.self_check import TargetCheck, check_target
from tp_dflash.target.source import target_file
from tp_dflash.target.target import Target
from tp_dflash.target.tensor_parallel import check_shares

__all__ = [
    "Target",
    "TargetCheck",
    "TargetFacts",
    "check_shares",
    "check_target",
    "count_decoder_parameters",
    "plan_buckets",
    "read_embedding_rows",
    "read_head_rows",
    "read_target_facts",
    "target_file",
]
