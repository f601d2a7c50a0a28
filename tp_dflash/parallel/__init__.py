"""Process groups and devices: who can talk to whom, opened once, in one order, at start; and how ranks look out for each other.

In: a placement, this process's rank, a backend, a store. Out: group objects that are handed down as arguments; no room
below asks for a global rank. Nothing here knows what is sent.
"""

from tp_dflash.parallel.device import pick_device, synchronise
from tp_dflash.parallel.groups import Groups, open_groups, open_rows
from tp_dflash.parallel.lookout import Lookout, Neighbourhood, silence_of
from tp_dflash.parallel.stopping import StopRequests

__all__ = [
    "Groups",
    "Lookout",
    "Neighbourhood",
    "StopRequests",
    "open_groups",
    "open_rows",
    "pick_device",
    "silence_of",
    "synchronise",
]
