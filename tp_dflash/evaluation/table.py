"""An evaluation's figures in the terminal: one column a prompt set."""

from __future__ import annotations

from rich.table import Table

from tp_dflash.evaluation.report import EvaluationReport, PromptSetReport

_POSITIONS = 8


def report_table(report: EvaluationReport) -> Table:
    """The table of a report; print it with a rich console."""
    table = Table(title=f"{report.drafter} on {report.target}: acceptance length {report.acceptance_length:.2f}")
    table.add_column("prompt set")
    columns = [_column(each) for each in report.sets]
    for each in report.sets:
        table.add_column(each.name, justify="right", overflow="fold")
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    if report.offline:
        found = ", ".join(f"{name.replace('_', ' of ')} {length:.2f}" for name, length in report.offline.items())
        table.caption = f"acceptance length on documents as they stand: {found}"
    return table


def _column(each: PromptSetReport) -> dict[str, str]:
    whole = sum(each.phase_seconds.values()) or 1.0
    shares = " / ".join(f"{100 * seconds / whole:.0f}" for seconds in each.phase_seconds.values())
    positions = each.acceptance_by_position
    more = " .." if len(positions) > _POSITIONS else ""
    return {
        "prompts": str(each.num_prompts),
        "tokens, blocks": f"{each.num_tokens}, {each.num_blocks}",
        "acceptance length": f"{each.acceptance_length:.2f}",
        "% of blocks that accept position 1, 2, ..": " ".join(f"{100 * x:.0f}" for x in positions[:_POSITIONS]) + more,
        "expected by the drafter / accepted": _or_dash(each.calibration, ".2f"),
        "tokens/s": f"{each.tokens_per_second:.1f}",
        "tokens/s without the drafter": _or_dash(each.plain_tokens_per_second, ".1f"),
        "ratio, on the same prompts": _or_dash(each.speedup, ".2f"),
        "% of time: draft / verify / rest": shares,
        "answers equal with and without": _equal(each),
    }


def _equal(each: PromptSetReport) -> str:
    return (
        "-" if each.identical is None or not each.compared_prompts else f"{each.identical} of {each.compared_prompts}"
    )


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
