"""``tp-dflash evaluate DRAFTER``: decode prompts with a drafter and its target, and report what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tp_dflash.cli.world import World, joined, leaving_at_once
from tp_dflash.config.data import TemplateConfig
from tp_dflash.config.evaluation import EvaluationConfig
from tp_dflash.config.load import ConfigError
from tp_dflash.config.run import RunConfig
from tp_dflash.config.run_files import RunFiles
from tp_dflash.config.target import TargetConfig

if TYPE_CHECKING:  # heavy imports wait until a command needs them
    import torch

    from tp_dflash.evaluation import DraftHead, EvaluationReport
    from tp_dflash.formats import PublishedDrafter
    from tp_dflash.target import TargetFacts

_TIMEOUT_SECONDS = 3600.0
# An evaluation setting that no option names keeps the run's value, or the default.
_Setting = dict[str, Any]


@dataclass(frozen=True)
class _Subject:
    """What is evaluated. run: folder of the run that the drafter is a checkpoint of, None for a published drafter."""

    drafter: Path
    run: Path | None
    step: int | None
    target: TargetConfig
    tokenizer: str
    template: TemplateConfig
    settings: EvaluationConfig


def evaluate(
    drafter: Annotated[
        Path,
        typer.Argument(help="Folder of a run (its newest checkpoint), of one checkpoint, or of a published drafter."),
    ],
    target: Annotated[
        str | None, typer.Option(help="Target's folder or hub name; default: the run's, or the one the export names.")
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE or FILE of JSONL prompts, repeatable; default: the run's prompt sets."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts of each set.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Prompts decoded together.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0: greedy; above: sampled.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Of sampled drafts: rejection or match.")] = None,
    tree_budget: Annotated[int | None, typer.Option(help="Nodes of a draft tree, 1..1024; default: a chain.")] = None,
    tree_stop: Annotated[str | None, typer.Option(help="budget, or cost: grow only while it pays.")] = None,
    baseline_prompts: Annotated[
        int | None, typer.Option(min=0, help="Prompts of each set that are also decoded without the drafter.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of sampling.")] = None,
    step: Annotated[int | None, typer.Option(help="Of a run: the checkpoint of this step.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16 or float32; default: the run's, else float32 on CPUs, bfloat16 on GPUs."),
    ] = None,
    attention: Annotated[str | None, typer.Option(help="Target's attention: sdpa or eager.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run model code that comes with the target.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the figures (.png, .svg, .pdf).")] = None,
) -> None:
    """Report acceptance length, streaks, speed and calibration per prompt set. With torchrun, ranks share the prompts."""
    changes = {
        "prompts": _prompt_sets(prompts), "max_new_tokens": max_new_tokens, "batch_size": batch_size,
        "temperature": temperature, "acceptance": acceptance, "tree_budget": tree_budget, "tree_stop": tree_stop,
        "baseline_prompts": baseline_prompts, "seed": seed,
    }  # fmt: skip
    of_target = {"path": target, "dtype": dtype, "attention": attention, "trust_remote_code": trust_remote_code or None}
    world = World.from_environment()
    try:
        subject = _subject(drafter, step, of_target, changes, limit)
        if world.world_size == 1:
            _run(subject, world, report, picture)
            return
    except ValueError as error:
        raise ConfigError(str(error)) from None
    with leaving_at_once(f"rank {world.rank}, evaluation"):
        _run(subject, world, report, picture)


def _subject(drafter: Path, step: int | None, target: _Setting, changes: _Setting, limit: int | None) -> _Subject:
    """Where everything comes from: the options first, then the run or the export, then the defaults."""
    run = drafter if RunFiles(drafter).settings.is_file() else None
    if run is None and (drafter / RunFiles.STATE).is_file():
        run, step = drafter.parent.parent, int(drafter.name.partition("-")[2])
    config = None
    if run is not None:
        from tp_dflash.training.export import read_run_config

        config = read_run_config(run)
    target_config = _target(drafter, config, target)
    settings = _changed(config.evaluation if config else EvaluationConfig(), changes)
    if limit is not None:
        settings = _changed(settings, {"prompts": [{**each.model_dump(), "limit": limit} for each in settings.prompts]})
    if not settings.prompts:
        raise ValueError("expected prompts to decode, got none; give --prompts NAME=FILE")
    tokenizer = (config.data.tokenizer if config else None) or target_config.path
    if tokenizer is None:
        raise ValueError("expected a target with a tokenizer, got made-up weights; give --target")
    template = config.data.template if config else TemplateConfig()
    return _Subject(drafter, run, step, target_config, tokenizer, template, settings)


def _target(drafter: Path, config: RunConfig | None, target: _Setting) -> TargetConfig:
    if config is not None:
        if target["path"] is not None:
            target = {**target, "random_weights": False, "shape": {}}
        return _changed(config.target, target)
    import torch

    from tp_dflash.formats import TrainingRecord

    if not drafter.is_dir():
        raise ValueError(
            f"expected the folder of a run or a drafter, got {drafter}, where there is none; correct the path"
        )
    if target["path"] is None:
        record = TrainingRecord.read(drafter)
        if record is None:
            raise ValueError(f"{drafter}: expected the target's folder or hub name, got none; give --target")
        target = {**target, "path": record.target.name_or_path}
    default = "bfloat16" if torch.cuda.is_available() else "float32"
    return _changed(TargetConfig(path=target["path"], dtype=default), target)


def _changed(section: Any, changes: _Setting) -> Any:
    """The section with those changes that are not None, checked again."""
    given = {name: value for name, value in changes.items() if value is not None}
    return type(section).model_validate({**section.model_dump(), **given})


def _prompt_sets(prompts: list[str] | None) -> list[_Setting] | None:
    if not prompts:
        return None
    pairs = [
        (name, path) if equals else (Path(name).stem, name)
        for name, equals, path in (p.partition("=") for p in prompts)
    ]
    return [{"name": name, "path": path} for name, path in pairs]


def _run(subject: _Subject, world: World, report: Path | None, picture: Path | None) -> None:
    import torch.distributed as dist
    from rich.console import Console

    from tp_dflash.evaluation import draw_report, progress_bars, report_table
    from tp_dflash.evaluation.picture import check_picture
    from tp_dflash.parallel import pick_device

    if picture is not None:
        check_picture(picture)
    device = pick_device(world.local_rank)
    job = _read(subject, device)
    console = Console(quiet=world.rank > 0)
    with joined(world, _TIMEOUT_SECONDS), progress_bars(console) as progress:
        found = job(group=dist.group.WORLD, progress=progress)
    if world.rank > 0:
        return
    console.print(report_table(found))
    if report is not None:
        found.write(report)
        console.print(f"figures in {report}")
    if picture is not None:
        draw_report(found, picture)
        console.print(f"drawn in {picture}")


def _read(subject: _Subject, device: torch.device) -> Callable[..., EvaluationReport]:
    """Read all that can be at fault, before any rank waits for another; what is left is the decoding."""
    from tp_dflash.data.tokenizer import load_tokenizer
    from tp_dflash.evaluation import evaluate_drafter, read_prompt_set
    from tp_dflash.target import Target, read_head_rows, read_target_facts

    tokenizer = load_tokenizer(subject.tokenizer, subject.target.trust_remote_code)
    prompt_sets = [read_prompt_set(each, tokenizer, subject.template) for each in subject.settings.prompts]
    facts = read_target_facts(subject.target)
    published, draft_head, name = _drafter(subject, facts, device)
    target = Target.load(subject.target, facts, published.shape.target_layer_ids, device)
    head_VD = read_head_rows(subject.target, facts, 0, facts.vocab_size, device)
    drafter = published.build().to(device, facts.dtype)
    return partial(
        evaluate_drafter,
        drafter,
        target,
        head_VD,
        prompt_sets,
        subject.settings,
        draft_head=draft_head,
        names=(name, facts.name),
    )


def _drafter(
    subject: _Subject, facts: TargetFacts, device: torch.device
) -> tuple[PublishedDrafter, DraftHead | None, str]:
    if subject.run is None:
        from tp_dflash.evaluation.published import read_for_evaluation

        return *read_for_evaluation(subject.drafter, facts, device), str(subject.drafter)
    from tp_dflash.training.export import read_checkpoint, read_run_config

    config = read_run_config(subject.run)
    drafter, folder = read_checkpoint(subject.run, config, dtype="float32", step=subject.step)
    return drafter, None, str(folder)
