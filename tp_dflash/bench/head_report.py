"""The results of ``bench head`` for people: a table, and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from tp_dflash.bench.head_results import HeadResults, Timed


def head_table(results: HeadResults) -> Table:
    """One line a contestant; ratios are to the bare products on the same number of ranks and rows."""
    sizes = results.sizes
    table = Table(title=f"{sizes.rows} rows, D {sizes.width}, V {sizes.vocabulary}, chunks of {sizes.chunk_rows} rows")
    for heading in ("what", "tp", "rows", "ms", "TFLOP/s a GPU", "extra GiB", "ratio to products"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for timed in results.timed:
        ratio = _ratio_to_products(results, timed)
        table.add_row(
            timed.name,
            str(timed.num_ranks),
            str(timed.rows),
            f"{timed.found.milliseconds:.1f}",
            f"{timed.teraflops(sizes):.0f}",
            f"{timed.found.extra_gib:.2f}",
            "" if ratio is None else f"{ratio:.3f}",
        )
    return table


def head_text(results: HeadResults) -> str:
    """The figures, the memory at other numbers of rows and the errors near convergence, a line each."""
    lines = [
        f"{name}: {'not measured' if value is None else f'{value:.4g}'}" for name, value in results.figures().items()
    ]
    lines += [f"extra memory at {rows} rows: {gib:.3f} GiB" for rows, gib in results.extra_gib_by_rows.items()]
    for precision, error in results.errors.items():
        lines.append(
            f"{precision} logits at KL {error.kl:.4f}: hidden gradient {100 * error.gradient:.2f}% off fp64, "
            f"loss {100 * error.loss:.3f}%"
        )
    return "\n".join(lines)


def draw_head(results: HeadResults, title: str, path: Path) -> None:
    """Two rows of bars, milliseconds and extra memory; ValueError that names the extra if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("expected matplotlib for a picture, got none; install tp_dflash[plot]") from None
    timed = [entry for entry in results.timed if entry.rows == results.sizes.rows]
    names = [f"{entry.name}, tp {entry.num_ranks}" for entry in timed]
    colours = ["#4477aa" if entry.name.startswith("sharded") else "#bbbbbb" for entry in timed]
    figure = Figure(figsize=(11, 1.2 + 0.36 * len(timed)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, values, unit in (
        (left, [entry.found.milliseconds for entry in timed], "ms"),
        (right, [entry.found.extra_gib for entry in timed], "GiB of extra memory"),
    ):
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_xlabel(unit)
        axes.margins(x=0.15)
    left.invert_yaxis()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _ratio_to_products(results: HeadResults, timed: Timed) -> float | None:
    bare = results.find("bare products", timed.num_ranks)
    if bare is None or timed.rows != results.sizes.rows or timed.name.startswith("bare"):
        return None
    return timed.found.milliseconds / bare.milliseconds
