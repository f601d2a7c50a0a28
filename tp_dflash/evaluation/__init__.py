"""Speculative decoding with the target: what a drafter is worth when it is served.

In: a drafter, a target with its cache, prompts. Out: an EvaluationReport per prompt set, and draft trees with their exact
acceptance for anyone who has log-probabilities. Nothing here trains, and nothing here knows how training works.
"""

from tp_dflash.evaluation.decoding import Decoder, DecodingRules
from tp_dflash.evaluation.draft_session import DraftHead
from tp_dflash.evaluation.draft_tree import DraftTree
from tp_dflash.evaluation.evaluate import evaluate_drafter
from tp_dflash.evaluation.forward_cost import ForwardCost
from tp_dflash.evaluation.offline_acceptance import OfflineAcceptance, offline_acceptance
from tp_dflash.evaluation.picture import draw_report
from tp_dflash.evaluation.progress import progress_bars
from tp_dflash.evaluation.prompts import PromptSet, read_prompt_set
from tp_dflash.evaluation.report import EvaluationReport, PromptSetReport
from tp_dflash.evaluation.streaks import StreakTally, renewal_streaks
from tp_dflash.evaluation.table import report_table
from tp_dflash.evaluation.tree_acceptance import prefix_threshold, tree_acceptance

__all__ = [
    "Decoder",
    "DecodingRules",
    "DraftHead",
    "DraftTree",
    "EvaluationReport",
    "ForwardCost",
    "OfflineAcceptance",
    "PromptSet",
    "PromptSetReport",
    "StreakTally",
    "draw_report",
    "evaluate_drafter",
    "offline_acceptance",
    "prefix_threshold",
    "progress_bars",
    "read_prompt_set",
    "renewal_streaks",
    "report_table",
    "tree_acceptance",
]
