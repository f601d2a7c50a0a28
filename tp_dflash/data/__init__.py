"""From anyone's conversations to packs: read, tokenise with an exact loss mask, store, plan epochs.

In: files and a tokenizer. Out: a prepared folder that every rank reads (`open_store`) and a plan of packs that every
rank computes alike (`BatchPlan`). Nothing here knows of targets, drafters or process groups.
"""

from tp_dflash.data.bad_record import BadRecordError, DropReason
from tp_dflash.data.batch_plan import BatchPlan
from tp_dflash.data.epoch_plan import EpochPlan
from tp_dflash.data.fingerprint import fingerprint, store_folder
from tp_dflash.data.preparation_report import PreparationReport
from tp_dflash.data.prepare import PrepareProgress, prepare_store
from tp_dflash.data.splits import DataSplits, open_store
from tp_dflash.data.store import TokenStore

__all__ = [
    "BadRecordError",
    "BatchPlan",
    "DataSplits",
    "DropReason",
    "EpochPlan",
    "PreparationReport",
    "PrepareProgress",
    "TokenStore",
    "fingerprint",
    "open_store",
    "prepare_store",
    "store_folder",
]
