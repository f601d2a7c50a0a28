"""``tp-dflash regenerate``: the target writes the answers, through a server or here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tp_dflash.data.regeneration import (
        AnswerFile,
        LocalAnswerer,
        RegenerationCounts,
        ServerAnswerer,
    )


def regenerate(
    sources: Annotated[
        list[str], typer.Argument(help="Files, folders, globs or hub names; their questions are asked.")
    ],
    output: Annotated[Path, typer.Option(help="JSONL file of the new conversations; goes on if it is there.")],
    model: Annotated[str, typer.Option(help="Name on the server, or folder or hub name of a local model.")],
    server: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible server; without it the model runs here.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0: greedy; default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus; default: the model's own.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Candidates; default: the model's own.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 2048,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Passed to the chat template; default: neither.")
    ] = None,
    answers: Annotated[int, typer.Option(min=1, help="Answers to each record; several need sampling.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many records.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time (server).")] = 32,
    retries: Annotated[int, typer.Option(min=0, help="Further attempts at a request that failed (server).")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a whole answer (server).")] = 600.0,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the server.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Conversations answered together (local).")] = 16,
    devices: Annotated[
        str | None, typer.Option(help="Such as cuda:0,cuda:1 (local); default: all GPUs, else the CPU.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Weights of the local model.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(help="Allow code of the model's repository (local).")] = False,
) -> None:
    """Have the target write the answers to everyone's questions. The same command goes on where it was ended."""
    from tp_dflash.config.load import ConfigError
    from tp_dflash.data.regeneration import (
        AnswerFile,
        ChatServer,
        LocalAnswerer,
        RegenerationError,
        SamplingSettings,
        ServerAnswerer,
    )

    if answers > 1 and temperature == 0:
        raise ConfigError(
            f"--answers {answers}: expected sampling, got temperature 0, which always answers the same; leave one out"
        )
    try:
        settings = SamplingSettings(model, temperature, top_p, top_k, max_tokens, seed, thinking)
        answerer: ServerAnswerer | LocalAnswerer
        if server is not None:
            asked = ChatServer(server, settings, timeout=timeout, retries=retries, api_key=api_key)
            answerer = ServerAnswerer(asked, concurrency)
        else:
            answerer = LocalAnswerer(settings, _devices(devices), batch_size, dtype, trust_remote_code)
        with AnswerFile(output, settings) as file:
            counts = _run(sources, file, limit, answers, answerer)
    except (ValueError, OSError, RegenerationError) as error:
        raise ConfigError(str(error)) from None
    missing = counts.failed + counts.bad
    print(
        f"{counts.answered + counts.found} of {counts.records * answers} answers to {counts.records} records are in "
        f"{output}, {counts.answered} of them written now ({counts.cut_off} cut off at {settings.max_tokens} tokens)"
    )
    if missing:
        print(
            f"{counts.failed} failed and {counts.bad} ask nothing: {output}.failed says why; failures are tried again"
        )
        raise typer.Exit(1)


def _devices(devices: str | None) -> tuple[str, ...]:
    import torch

    if devices is not None:
        return tuple(device.strip() for device in devices.split(",") if device.strip())
    return tuple(f"cuda:{index}" for index in range(torch.cuda.device_count())) or ("cpu",)


def _run(
    sources: list[str], file: AnswerFile, limit: int | None, answers: int, answerer: ServerAnswerer | LocalAnswerer
) -> RegenerationCounts:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tp_dflash.config.data import SourceConfig
    from tp_dflash.data.regeneration import Regeneration

    run = Regeneration([SourceConfig(path=source) for source in sources], file, limit, answers)
    text = (
        "{task.completed:,.0f} answered, {task.fields[found]:,} found, {task.fields[failed]:,} failed, "
        "{task.fields[tokens]:,} tokens, {task.fields[speed]:,.0f} tokens/s"
    )
    with Progress(SpinnerColumn(), TextColumn(text), TimeElapsedColumn()) as bar:
        task = bar.add_task("regenerate", total=None, found=len(file.keys), failed=0, tokens=0, speed=0.0)

        def show(counts: RegenerationCounts) -> None:
            seconds = bar.tasks[task].elapsed or 1.0
            bar.update(
                task,
                completed=counts.answered,
                found=counts.found,
                failed=counts.failed,
                tokens=counts.tokens,
                speed=counts.tokens / seconds,
            )

        return run.run(answerer, show)
