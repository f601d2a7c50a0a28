"""The command line: argv, environment and process groups come in here and nowhere else.

Each command is a module with one function; heavy imports happen inside it, so that ``--help`` and the planner answer fast.
"""

from __future__ import annotations

import sys

import typer

from tp_dflash.cli.bench_head import bench_head
from tp_dflash.cli.bench_prepare import bench_prepare
from tp_dflash.cli.bench_step import bench_step
from tp_dflash.cli.cache import cache
from tp_dflash.cli.check import check
from tp_dflash.cli.doctor import doctor
from tp_dflash.cli.evaluate import evaluate
from tp_dflash.cli.export import export
from tp_dflash.cli.plan import plan
from tp_dflash.cli.prepare import prepare
from tp_dflash.cli.regenerate import regenerate
from tp_dflash.cli.report import report
from tp_dflash.cli.train import train
from tp_dflash.cli.world import tell_torchrun
from tp_dflash.config.load import ConfigError
from tp_dflash.placement import PlacementError

app = typer.Typer(
    help="Train DFlash drafters with both lm_heads sharded over the vocabulary.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (prepare, regenerate, cache, plan, train, evaluate, export, check, report, doctor):
    app.command()(command)
bench = typer.Typer(help="Measure parts of training on this machine.", no_args_is_help=True)
bench.command("head")(bench_head)
bench.command("step")(bench_step)
bench.command("prepare")(bench_prepare)
app.add_typer(bench, name="bench")


def main() -> None:
    """Entry point of ``tp-dflash`` and of ``python -m tp_dflash``; a mistake of the user is one message and exit code 2."""
    try:
        app()
    except (ConfigError, PlacementError) as error:
        tell_torchrun(f"tp-dflash: {error}")
        print(f"tp-dflash: {error}", file=sys.stderr)
        raise SystemExit(2) from None
