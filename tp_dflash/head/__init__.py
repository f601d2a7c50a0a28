"""The head: teacher and drafter logits, sharded over the vocabulary, from hidden rows to a loss with its gradients.

Comes in: hidden rows and head shards. Goes out: ``HeadLoss``. It knows nothing of the drafter's network, of the target, or of
how rows came about; ``sharded_head_loss`` is all that a training loop calls, ``dense_head_loss`` is its oracle.
"""

from tp_dflash.config.objective import Objective
from tp_dflash.head.draft_vocabulary import DraftVocabulary
from tp_dflash.head.head_loss import HeadLoss
from tp_dflash.head.head_shard import HeadShard
from tp_dflash.head.oracle import OracleLoss, dense_head_loss
from tp_dflash.head.row_statistics import RowStatistics
from tp_dflash.head.sharded_loss import LogitsPrecision, sharded_head_loss
from tp_dflash.head.vocab_range import VocabRange

__all__ = [
    "DraftVocabulary",
    "HeadLoss",
    "HeadShard",
    "LogitsPrecision",
    "Objective",
    "OracleLoss",
    "RowStatistics",
    "VocabRange",
    "dense_head_loss",
    "sharded_head_loss",
]
