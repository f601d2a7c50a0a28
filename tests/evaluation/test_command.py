"""``tp-dflash evaluate`` on published folders, checkpoints and runs, with a tiny target that has a tokenizer."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
import typer
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from typer.testing import CliRunner

from tests.evaluation.models import MASK, make_drafter, make_prompts, open_target, save_target
from tests.evaluation.tokenizers import character_tokenizer
from tp_dflash.cli.evaluate import evaluate
from tp_dflash.config.load import ConfigError, dump_config, parse_config
from tp_dflash.drafter import Drafter
from tp_dflash.formats import PublishedDrafter, TargetIdentity, TrainingRecord, tensor_digests, write_zlab
from tp_dflash.formats.speculators import write_speculators
from tp_dflash.formats.target_matrices import TargetMatrices
from tp_dflash.head import DraftVocabulary
from tp_dflash.training.checkpoint_folder import partial_path, seal

QUICK = ["--max-new-tokens", "6", "--baseline-prompts", "2"]


@cache
def _folder() -> Path:
    """A folder with the target, its prompts, one drafter in every form, and a run that holds it."""
    folder = Path(mkdtemp())
    _, config = save_target(folder / "target")
    character_tokenizer().save_pretrained(folder / "target")
    target, _ = open_target(config)
    drafter = make_drafter(target, target_layer_ids=[0, 3])
    tensors = {name: parameter.detach() for name, parameter in drafter.named_parameters()}
    record = TrainingRecord(drafter.shape, tensor_digests(tensors), TargetIdentity.of(config, target.facts))
    published = PublishedDrafter(drafter.shape, tensors, record)
    write_zlab(folder / "zlab", published)
    write_zlab(folder / "foreign", PublishedDrafter(drafter.shape, tensors))
    matrices = TargetMatrices.read(config, target.facts, published.dtype)
    write_speculators(folder / "speculators", published, matrices)
    few = DraftVocabulary.most_frequent(matrices.embeddings_VD.norm(dim=1), 20)
    write_speculators(folder / "reduced", published, TargetMatrices.read(config, target.facts, published.dtype, few))
    (folder / "asked.jsonl").write_text("\n".join(_line(prompt) for prompt in make_prompts(3)) + "\n")
    _save_run(folder, drafter)
    return folder


def _line(prompt: list[int]) -> str:
    return json.dumps({"prompt": "".join(map(chr, prompt))})


def _save_run(folder: Path, drafter: Drafter) -> None:
    settings = {
        "target": {"path": str(folder / "target"), "dtype": "float32"},
        "drafter": {"mask_token_id": MASK, "block_size": 6, "num_layers": 2, "target_layer_ids": [0, 3]},
        "data": {"train": [{"path": "nothing.jsonl"}]},
        "evaluation": {"prompts": [{"name": "ours", "path": str(folder / "asked.jsonl")}], "max_new_tokens": 5},
    }
    root = folder / "run" / "checkpoints"
    root.mkdir(parents=True)
    (folder / "run" / "run.json").write_text(json.dumps({"config": dump_config(parse_config(settings))}))
    for step, factor in ((2, 0.5), (4, 1.0)):
        tensors = {f"drafter.{name}": parameter.detach() * factor for name, parameter in drafter.named_parameters()}
        writer = HuggingFaceStorageWriter(path=str(partial_path(root, step)), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, no_dist=True)
        seal(root, step, {"updates": step})


def _run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(evaluate)
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def _figures(*arguments: str) -> dict[str, Any]:
    path = Path(mkdtemp()) / "report.json"
    _run(*arguments, "--report", str(path))
    return json.loads(path.read_text())


def _asked(name: str = "asked") -> list[str]:
    return ["--prompts", f"{name}={_folder() / 'asked.jsonl'}"]


def test_every_layout_is_the_same_drafter() -> None:
    zlab = _figures(str(_folder() / "zlab"), *_asked(), *QUICK)
    assert zlab["target"] == str(_folder() / "target")
    assert zlab["sets"][0]["name"] == "asked"
    assert zlab["sets"][0]["num_prompts"] == 3
    assert zlab["sets"][0]["identical"] == zlab["sets"][0]["compared_prompts"] == 2
    target = ["--target", str(_folder() / "target")]
    for form in ("foreign", "speculators"):
        other = _figures(str(_folder() / form), *target, *_asked(), *QUICK)
        assert other["sets"][0]["streak_histogram"] == zlab["sets"][0]["streak_histogram"]
        assert other["sets"][0]["expected_streak"] == pytest.approx(zlab["sets"][0]["expected_streak"], rel=1e-4)


def test_a_reduced_vocabulary_proposes_only_its_own_tokens() -> None:
    """Its softmax runs over fewer tokens, so it expects more than the whole head does; answers stay the target's."""
    for settings in (["--tree-budget", "8"], ["--temperature", "0.9"], []):
        reduced = _figures(str(_folder() / "reduced"), *_asked(), *QUICK, *settings)["sets"][0]
        assert reduced["compared_prompts"] == 2
    whole = _figures(str(_folder() / "zlab"), *_asked(), *QUICK)["sets"][0]
    assert reduced["identical"] == 2
    assert reduced["expected_streak"] > whole["expected_streak"]


def test_a_run_brings_its_own_settings() -> None:
    newest = _figures(str(_folder() / "run"))
    assert newest["sets"][0]["name"] == "ours"
    assert newest["settings"]["max_new_tokens"] == 5
    assert newest["drafter"].endswith("step-00000004")
    earlier = _figures(str(_folder() / "run"), "--step", "2")
    named = _figures(str(_folder() / "run" / "checkpoints" / "step-00000002"))
    assert earlier["drafter"] == named["drafter"]
    assert earlier["sets"][0]["expected_streak"] == named["sets"][0]["expected_streak"]
    assert earlier["sets"][0]["expected_streak"] != newest["sets"][0]["expected_streak"]


def test_options_go_before_the_runs_settings() -> None:
    changed = _figures(
        str(_folder() / "run"), "--max-new-tokens", "3", "--tree-budget", "4", "--limit", "1", *_asked("mine")
    )
    assert (changed["settings"]["max_new_tokens"], changed["settings"]["tree_budget"]) == (3, 4)
    assert [(each["name"], each["num_prompts"]) for each in changed["sets"]] == [("mine", 1)]


def test_a_file_alone_is_named_after_itself() -> None:
    figures = _figures(str(_folder() / "zlab"), "--prompts", str(_folder() / "asked.jsonl"), *QUICK)
    assert figures["sets"][0]["name"] == "asked"


def test_the_table_is_shown_and_the_picture_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = _run(str(_folder() / "run"), "--picture", str(tmp_path / "p.svg")).output
    assert "acceptance length" in output
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zlab"], r"--prompts NAME=FILE"),
        (["foreign", "PROMPTS"], r"--target"),
        (["run", "--step", "3"], r"step-00000003.*another step"),
        (["zlab", "PROMPTS", "--acceptance", "rejection", "--tree-budget", "4"], r"match for trees"),
        (["zlab", "PROMPTS", "--picture", "a.docx"], r"ends in \.png"),
        (["target", "PROMPTS", "--target", "TARGET"], r"dflash_config or speculators_model_type"),
        (["nowhere", "PROMPTS", "--target", "TARGET"], r"nowhere"),
        (["zlab", "--prompts", "nothing.jsonl"], r"nothing\.jsonl: expected a JSONL file"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], message: str) -> None:
    named = {"PROMPTS": _asked(), "TARGET": [str(_folder() / "target")]}
    words = [word for argument in arguments[1:] for word in named.get(argument, [argument])]
    with pytest.raises(ConfigError, match=message):
        _run(str(_folder() / arguments[0]), *words)
