"""What a person looks at after a preparation: sizes, lengths, what was dropped and why, and the mask on real examples.

In: prepared data. Out: things that rich prints. Supervised text is green, and between >> and << where there is no colour.
"""

from __future__ import annotations

from rich.console import Console, ConsoleRenderable, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from tp_dflash.blocks import Document
from tp_dflash.data.preparation_report import PreparationReport, SplitCounts
from tp_dflash.data.splits import DataSplits
from tp_dflash.data.store import TokenStore

_BAR_WIDTH = 40
_EXAMPLE_CHARACTERS = 1500


def print_preparation(
    console: Console, data: DataSplits, tokenizer: PreTrainedTokenizerBase, num_examples: int = 3
) -> None:
    """Print all of it."""
    report = data.report
    console.print(Group(_sizes(report), _lengths(report.splits["train"])))
    console.print(_dropped(report))
    if report.dropped:
        console.print(f"every dropped record, by file and line: {data.train.folder / report.bad_lines}", soft_wrap=True)
    if report.end_of_turn is not None:
        shown = repr(report.end_of_turn) if report.end_of_turn else "nothing (see data.template.end_tokens)"
        console.print(f"an assistant turn ends with {shown}", markup=False)
    for document_id in range(min(num_examples, data.train.num_documents)):
        console.print(_example(console, data.train, document_id, tokenizer))


def _sizes(report: PreparationReport) -> Table:
    table = Table(title=f"{report.records:,} records")
    for column in ("split", "documents", "tokens", "supervised", "share", "longest"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, counts in report.splits.items():
        if counts.documents:
            share = f"{counts.supervised_tokens / counts.tokens:.1%}"
            sizes = (counts.documents, counts.tokens, counts.supervised_tokens)
            table.add_row(split, *(f"{size:,}" for size in sizes), share, f"{counts.longest:,}")
    return table


def _lengths(counts: SplitCounts) -> Table:
    table = Table(title="length of training documents", show_header=True)
    table.add_column("tokens", justify="right")
    table.add_column("documents", justify="right")
    table.add_column("")
    most = max(counts.length_counts.values())
    for size_class in range(min(counts.length_counts), max(counts.length_counts) + 1):
        number = counts.length_counts.get(size_class, 0)
        low, high = 1 << (size_class - 1), (1 << size_class) - 1
        table.add_row(f"{low:,}-{high:,}", f"{number:,}", "#" * -(-number * _BAR_WIDTH // most))
    return table


def _dropped(report: PreparationReport) -> ConsoleRenderable:
    if not report.dropped:
        return Text(f"no record dropped, {report.truncated:,} cut at data.max_length")
    table = Table(title="records that are not trained on")
    table.add_column("reason")
    table.add_column("records", justify="right")
    for reason, count in sorted(report.dropped.items(), key=lambda entry: -entry[1]):
        table.add_row(reason, f"{count:,}")
    table.add_section()
    table.add_row("cut at data.max_length, still used", f"{report.truncated:,}")
    return table


def _example(
    console: Console, store: TokenStore, document_id: int, tokenizer: PreTrainedTokenizerBase
) -> ConsoleRenderable:
    file, line = store.origin(document_id)
    document = store.document(document_id)
    text = mask_text(document, tokenizer, coloured=console.color_system is not None)
    return Panel(text, title=Text(f"{file}:{line}, {document.num_tokens} tokens"), title_align="left")


def mask_text(document: Document, tokenizer: PreTrainedTokenizerBase, *, coloured: bool) -> Text:
    """A document's text with its supervised part marked; long documents without their middle."""
    text = Text()
    for supervised, tokens in _runs(document):
        words = str(tokenizer.decode(tokens))
        if not supervised:
            text.append(words, style="dim")
        else:
            text.append(words if coloured else f">>{words}<<", style="bold green")
    if len(text) <= _EXAMPLE_CHARACTERS:
        return text
    half = _EXAMPLE_CHARACTERS // 2
    return text[:half] + Text(" [...] ", style="italic") + text[-half:]


def _runs(document: Document) -> list[tuple[bool, list[int]]]:
    """Stretches of tokens that are all supervised, or all not."""
    runs: list[tuple[bool, list[int]]] = []
    for token, supervised in zip(document.tokens_S.tolist(), document.loss_mask_S.tolist(), strict=True):
        if not runs or runs[-1][0] != supervised:
            runs.append((supervised, []))
        runs[-1][1].append(token)
    return runs
