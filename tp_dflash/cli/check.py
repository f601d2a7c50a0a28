"""``tp-dflash check DRAFTER``: hold a drafter's folder, or a run's configuration, against its target and a server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tp_dflash.config.data import DataConfig, SourceConfig, TemplateConfig
from tp_dflash.config.load import ConfigError, load_config
from tp_dflash.config.run import RunConfig
from tp_dflash.config.target import TargetConfig

if TYPE_CHECKING:  # heavy imports wait until a command needs them
    import torch
    from transformers import PreTrainedTokenizerBase

    from tp_dflash.blocks import Document
    from tp_dflash.data import TokenStore
    from tp_dflash.formats import PublishedDrafter
    from tp_dflash.formats.contract import Finding
    from tp_dflash.target import Target, TargetFacts

_PROBE_TOKENS = 8192
_QUESTION = "Explain in a few sentences how a lighthouse helps ships at night."


def check(
    drafter: Annotated[
        Path, typer.Argument(help="Folder of a published drafter; or, before training, a TOML configuration.")
    ],
    target: Annotated[
        str | None, typer.Option(help="Target's folder or hub name; default: the one of the configuration.")
    ] = None,
    server: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server that decodes with it.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Text (as for data.train) to probe the weights on; repeat for more.")
    ] = None,
    files_only: Annotated[bool, typer.Option("--files-only", help="Do not load the target's weights.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16 or float32; default: float32 on CPUs, bfloat16 on GPUs.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run model code that comes with the target.")] = False,
) -> None:
    """Compare everything that decides what a server computes; a line each, and exit code 1 if anything is wrong."""
    try:
        if files_only and (server or data):
            raise ValueError(
                "expected --files-only alone, got it with --server or --data, which run the target; drop one"
            )
        subject = _Subject.of(drafter, target, dtype, trust_remote_code)
        wrong = total = 0
        for finding in _findings(subject, server, data or [], files_only):
            print(finding.line, flush=True)
            total, wrong = total + 1, wrong + (not finding.ok)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    print(f"{total} compared, {wrong} wrong")
    raise typer.Exit(1 if wrong else 0)


@dataclass(frozen=True)
class _Subject:
    """What is checked. run: the configuration, where a TOML file was named."""

    path: Path
    run: RunConfig | None
    target: TargetConfig
    device: torch.device

    @staticmethod
    def of(drafter: Path, target: str | None, dtype: str | None, trust_remote_code: bool) -> _Subject:
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        run = load_config(drafter) if drafter.suffix == ".toml" else None
        if run is None and target is None:
            raise ValueError("expected the drafter's target, got none; give --target")
        given: dict[str, Any] = {} if run is None else run.target.model_dump()
        usual = given.get("dtype") or ("bfloat16" if device.type == "cuda" else "float32")
        given |= {"path": target or given.get("path"), "dtype": dtype or usual}
        given["trust_remote_code"] = trust_remote_code or bool(given.get("trust_remote_code"))
        return _Subject(drafter, run, TargetConfig.model_validate(given), device)


def _findings(subject: _Subject, server: str | None, data: list[str], files_only: bool) -> Iterator[Finding]:
    """Files first, then the running target, then text, then the server."""
    from tp_dflash.formats.contract import check_configuration, check_folder, check_running_target
    from tp_dflash.target import Target, read_target_facts

    facts = read_target_facts(subject.target)
    if subject.run is not None:
        shape = yield from check_configuration(subject.run.drafter, facts)
        if shape is None or files_only:
            return
        target = Target.load(subject.target, facts, shape.target_layer_ids, subject.device)
        yield from check_running_target(target)
        return
    yield from check_folder(subject.path, subject.target, facts)
    if files_only:
        return
    yield from _running(subject, facts, server, data)


def _running(subject: _Subject, facts: TargetFacts, server: str | None, data: list[str]) -> Iterator[Finding]:
    """What needs the target's weights; a folder that cannot be built has been reported by then."""
    from tp_dflash.formats import read_published
    from tp_dflash.formats.contract import Finding, check_running_target, probed_layer_ids
    from tp_dflash.target import Target

    try:
        published: PublishedDrafter | None = read_published(subject.path, facts.num_layers)
        layer_ids = probed_layer_ids(published.shape) if published else [0]
    except ValueError as error:
        yield Finding("folder", str(error), "correct what is wrong above, then check again")
        published, layer_ids = None, [0]
    target = Target.load(subject.target, facts, layer_ids, subject.device)
    yield from check_running_target(target)
    if published is None or not (server or data):
        return
    tokenizer, head = _tokenizer(subject), _head(subject, facts)
    if data:
        yield from _on_text(published, target, head, data, tokenizer)
    if server is not None:
        del target  # its taps are those of the probe
        tapped = Target.load(subject.target, facts, published.shape.target_layer_ids, subject.device)
        yield from _on_server(server, published, tapped, head, tokenizer)


def _on_text(
    published: PublishedDrafter, target: Target, head: torch.Tensor, data: list[str], tokenizer: PreTrainedTokenizerBase
) -> Iterator[Finding]:
    from tp_dflash.data import prepare_store
    from tp_dflash.formats.contract import Finding, probe

    template = {} if published.record is None else dict(published.record.recipe.get("template", {}))
    template.pop("chat_template", None)  # a file of the machine that trained
    with tempfile.TemporaryDirectory() as scratch:
        config = DataConfig(
            train=[SourceConfig(path=path) for path in data],
            max_length=2048,
            template=TemplateConfig(**template),
            cache=scratch,
        )
        store = prepare_store(config, tokenizer, Path(scratch) / "text").train
        count, mask = store.token_count(published.shape.mask_token_id), published.shape.mask_token_id
        yield Finding(
            "mask token in the data",
            f"{mask} occurs {count} times in {store.num_tokens} tokens",
            "train with a mask token that the text never uses" if count else None,
        )
        yield from probe(published, target, head, _some_documents(store))


def _some_documents(store: TokenStore) -> list[Document]:
    documents: list[Document] = []
    tokens = 0
    for document_id in range(store.num_documents):
        document = store.document(document_id)
        if documents and tokens + document.num_tokens > _PROBE_TOKENS:
            break
        documents.append(document)
        tokens += document.num_tokens
    return documents


def _on_server(
    url: str, published: PublishedDrafter, target: Target, head: torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Finding]:
    from tp_dflash.formats.contract import CompletionServer, check_server

    if tokenizer.chat_template is None:
        prompt = _QUESTION
    else:
        turns = [{"role": "user", "content": _QUESTION}]
        prompt = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=tokenizer.chat_template is None)
    drafter = published.build().to(target.device, target.facts.dtype)
    yield from check_server(
        CompletionServer(url),
        target,
        drafter,
        head,
        prompt_ids,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def _tokenizer(subject: _Subject) -> PreTrainedTokenizerBase:
    from tp_dflash.data.tokenizer import load_tokenizer

    return load_tokenizer(str(subject.target.path), subject.target.trust_remote_code)


def _head(subject: _Subject, facts: TargetFacts) -> torch.Tensor:
    from tp_dflash.target import read_head_rows

    return read_head_rows(subject.target, facts, 0, facts.vocab_size, subject.device)
