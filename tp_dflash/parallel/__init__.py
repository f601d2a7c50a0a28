"""Process groups and devices: who can talk to whom, opened once, in one order, at start.

In: a placement, this process's rank, a backend. Out: group objects that are handed down as arguments; no room below asks
for a global rank. Nothing here knows what is sent.
"""

from tp_dflash.parallel.device import pick_device, synchronise
from tp_dflash.parallel.groups import Groups, open_groups

__all__ = ["Groups", "open_groups", "pick_device", "synchronise"]
