"""The serving contract: what a published drafter's folder, its target and a running server must agree on.

In: a folder, a target, perhaps text and a server's address. Out: findings, each a line with the figure and what to
change. Nothing is repaired here, and no finding stops the next.
"""

from tp_dflash.formats.contract.check import check_folder, check_running_target
from tp_dflash.formats.contract.completion_server import CompletionServer
from tp_dflash.formats.contract.configuration_check import check_configuration
from tp_dflash.formats.contract.finding import Finding
from tp_dflash.formats.contract.probe import probe, probed_layer_ids
from tp_dflash.formats.contract.server_checks import check_server

__all__ = [
    "CompletionServer",
    "Finding",
    "check_configuration",
    "check_folder",
    "check_running_target",
    "check_server",
    "probe",
    "probed_layer_ids",
]
