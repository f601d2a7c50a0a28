"""An evaluation's figures in the terminal: one row a prompt set."""

from __future__ import annotations

from rich.table import Table

from tp_dflash.evaluation.report import EvaluationReport, PromptSetReport

_POSITIONS = 8


def report_table(report: EvaluationReport) -> Table:
    """The table of a report; print it with a rich console."""
    drafted = len(report.sets[0].acceptance_by_position)
    shown = [str(k) for k in range(1, min(drafted, _POSITIONS) + 1)]
    table = Table(
        title=f"{report.drafter} on {report.target}: acceptance length {report.acceptance_length:.2f}",
        caption=(
            f"accepted: share of blocks that accepted drafted position {', '.join(shown)}"
            f"{', ..' if drafted > _POSITIONS else ''}. expected/real: the drafter's own expectation over what was "
            "accepted. equal: answers equal to those without the drafter."
        ),
    )
    table.add_column("prompts")
    for column in ("number", "acceptance length", "accepted %", "tokens/s", "without", "ratio"):
        table.add_column(column, justify="right")
    for column in ("draft / verify / rest %", "expected/real", "equal"):
        table.add_column(column, justify="right")
    for each in report.sets:
        table.add_row(*_row(each))
    return table


def _row(each: PromptSetReport) -> list[str]:
    seconds = each.phase_seconds.values()
    whole = sum(seconds) or 1.0
    return [
        each.name,
        str(each.num_prompts),
        f"{each.acceptance_length:.2f}",
        " ".join(f"{100 * share:.0f}" for share in each.acceptance_by_position[:_POSITIONS]),
        f"{each.tokens_per_second:.1f}",
        _or_dash(each.plain_tokens_per_second, ".1f"),
        _or_dash(each.speedup, ".2f"),
        " / ".join(f"{100 * part / whole:.0f}" for part in seconds),
        _or_dash(each.calibration, ".2f"),
        f"{each.identical}/{each.compared_prompts}" if each.compared_prompts else "-",
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
