"""A run's folder as one page: what happened, how fast, how well, and what it survived.

In: the files that a run leaves. Out: one HTML page that needs nothing beside itself: no network, no script, no picture
files. Everything that comes from files is escaped.
"""

from tp_dflash.report.page import write_page
from tp_dflash.report.run_record import RunRecord

__all__ = ["RunRecord", "write_page"]
