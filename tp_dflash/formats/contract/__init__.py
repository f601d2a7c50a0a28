"""The serving contract: what a published drafter's folder, its target and a running server must agree on.

In: a folder, a target, perhaps a server's address. Out: findings, each a line with the figure and what to change. Nothing
is repaired here, and no finding stops the next.
"""

from tp_dflash.formats.contract.check import check_folder, check_running_target
from tp_dflash.formats.contract.finding import Finding

__all__ = ["Finding", "check_folder", "check_running_target"]
