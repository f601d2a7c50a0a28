"""``tp-dflash prepare``: tokenise training text before a run, and show what became of every record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

    from tp_dflash.config.data import DataConfig
    from tp_dflash.config.run import RunConfig
    from tp_dflash.data import DataSplits


def prepare(
    inputs: Annotated[
        list[str], typer.Argument(help="A TOML configuration; or files, folders, globs or hub names to read.")
    ],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat for more.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer; default: data.tokenizer, else the target's.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    examples: Annotated[int, typer.Option(min=0, help="Documents to show with their supervised part marked.")] = 3,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default: below data.cache, where train looks for it.")
    ] = None,
) -> None:
    """Tokenise and mask the training text, keep it where training finds it, and show what became of it."""
    from rich.console import Console

    from tp_dflash.config.load import ConfigError
    from tp_dflash.data import store_folder
    from tp_dflash.data.preparation_view import print_preparation
    from tp_dflash.data.tokenizer import load_tokenizer

    console = Console()
    try:
        run, data = _configuration(inputs, overrides or [], tokenizer, strict)
        trusted = run is not None and run.target.trust_remote_code
        loaded = load_tokenizer(str(data.tokenizer), trusted)
        folder = output or store_folder(data, loaded)
        splits = _prepared(console, data, loaded, folder)
        print_preparation(console, splits, loaded, examples)
        if run is not None:
            _print_packs(console, run, splits)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None
    console.print(f"prepared in {folder}", soft_wrap=True, highlight=False)
    if run is not None and (count := splits.train.token_count(run.drafter.mask_token_id)):
        mask = run.drafter.mask_token_id
        raise ConfigError(
            f"drafter.mask_token_id: expected a token that never occurs in the data, got {mask} "
            f"({loaded.convert_ids_to_tokens(mask)!r}), which occurs {count:,} times: training will refuse it; choose "
            "another unused embedding row, nothing has to be prepared again"
        )


def _configuration(
    inputs: list[str], overrides: list[str], tokenizer: str | None, strict: bool
) -> tuple[RunConfig | None, DataConfig]:
    """A run's configuration and its data section, or a data section for bare sources."""
    from tp_dflash.config.load import ConfigError, load_config, parse_section

    options: dict[str, object] = {"strict": True} if strict else {}
    if tokenizer is not None:
        options["tokenizer"] = tokenizer
    if len(inputs) == 1 and inputs[0].endswith(".toml"):
        run = load_config(Path(inputs[0]), overrides)
        options = {"tokenizer": run.data.tokenizer or run.target.path, **options}
        data = run.data.model_copy(update=options)
    else:
        run, data = None, parse_section("data", {"train": inputs, **options}, overrides)
    if data.tokenizer is None:
        raise ConfigError("data.tokenizer: expected a tokenizer, got none; set it or use --tokenizer")
    return run, data


def _prepared(console: Console, data: DataConfig, tokenizer: PreTrainedTokenizerBase, folder: Path) -> DataSplits:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from tp_dflash.data import PrepareProgress, prepare_store

    columns = (
        TextColumn("preparing"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("prepare", total=1.0, documents=0, tokens=0)

        def show(progress: PrepareProgress) -> None:
            bar.update(task, completed=progress.fraction, documents=progress.documents, tokens=progress.tokens)

        splits = prepare_store(data, tokenizer, folder, show)
        train = splits.report.splits["train"]
        bar.update(task, completed=1.0, documents=train.documents, tokens=train.tokens)
    return splits


def _print_packs(console: Console, run: RunConfig, splits: DataSplits) -> None:
    """How the documents fill packs, and how much of what is supervised falls into blocks."""
    from tp_dflash.data import BatchPlan
    from tp_dflash.data.coverage import anchor_coverage
    from tp_dflash.training.pack_feed import anchor_caps

    seed, store = run.training.seed, splits.train
    plan = BatchPlan(store.length_D, run.data.token_budget, seed, 1, store.weight_D).plan_epoch(0)
    coverage = anchor_coverage(plan, store, anchor_caps(run), seed, run.drafter.block_size, run.drafter.label_mode)
    fill = plan.num_tokens(store.length_D) / max(1, plan.num_filled_packs * run.data.token_budget)
    console.print(
        f"{plan.num_filled_packs:,} packs an epoch, {fill:.1%} full, {plan.padding(store.length_D):.1%} padding if a "
        f"target pads each to its longest document"
    )
    console.print(
        f"{coverage.share:.1%} of supervised tokens lie in a block of epoch 0 ({coverage.anchors:,} of "
        f"{coverage.eligible:,} possible anchors in {coverage.packs} packs; anchors.per_pack = {run.anchors.per_pack})"
    )
