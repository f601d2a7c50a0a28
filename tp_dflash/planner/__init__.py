"""Memory and time of a run before it starts: no GPU, no weights, arithmetic on sizes.

In: a configuration, a placement, a calibration. Out: what every rank holds and why, whether it fits, what to change, and
how fast it will be.
"""

from tp_dflash.planner.byte_sizes import in_gib, parse_bytes
from tp_dflash.planner.calibration import Calibration, read_calibration
from tp_dflash.planner.report import plan_text, sweep_text
from tp_dflash.planner.role_plan import RolePlan, plan_roles
from tp_dflash.planner.run_sizes import RunSizes
from tp_dflash.planner.step_time import StepTime, predict_time
from tp_dflash.planner.sweep import SweepPoint, parse_nodes, sweep_nodes
from tp_dflash.planner.sweep_picture import draw_sweep
from tp_dflash.planner.verdict import Verdict, check_fits

__all__ = [
    "Calibration",
    "RolePlan",
    "RunSizes",
    "StepTime",
    "SweepPoint",
    "Verdict",
    "check_fits",
    "draw_sweep",
    "in_gib",
    "parse_bytes",
    "parse_nodes",
    "plan_roles",
    "plan_text",
    "predict_time",
    "read_calibration",
    "sweep_nodes",
    "sweep_text",
]
