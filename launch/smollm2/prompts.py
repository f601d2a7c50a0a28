"""Gather the prompts of the SmolLM2 recipe: what is trained on, what of it is kept apart, and what is never trained on.

Comes in: a folder of packages (see `launch/smollm2.sh`). Goes out, in --out: `train.jsonl`, `indistribution.jsonl`
(unseen prompts of the same sources), `gsm8k.jsonl`, `humaneval.jsonl`, `mtbench.jsonl`; one `{"messages": [user],
"source": name}` a line. Which prompts are kept apart depends on their text alone. A training prompt that says the same as
a held-out one is left out.

    python -m launch.smollm2.prompts --packages data/smollm2/packages --out data/smollm2/prompts
"""

import argparse
import hashlib
import json
import random
import re
from pathlib import Path

from launch.smollm2 import packages
from launch.smollm2.functions import functions
from launch.smollm2.requests import requests
from launch.smollm2.word_problems import word_problems

SEED = 20261201
MOST_PER_SOURCE = 6000
KEPT_APART = 32  # one prompt in so many
_IN_DISTRIBUTION = 200
_OWN = {"word problems": 3000, "requests": 3000}


def training_sources(folder: Path) -> dict[str, list[str]]:
    """Source -> distinct prompts, at most `MOST_PER_SOURCE`, drawn by a generator of the source's own."""
    every = {
        "tasks": packages.tasks(folder),
        "function calls": packages.function_calls(folder),
        "writing": packages.writing(folder),
        "small talk": packages.small_talk(folder),
        "library functions": functions(),
        "word problems": word_problems(_OWN["word problems"], SEED),
        "requests": requests(_OWN["requests"], SEED),
    }
    drawn = {}
    for name, prompts in every.items():
        distinct = list({_said(prompt): prompt for prompt in prompts}.values())
        random.Random(f"{SEED} {name}").shuffle(distinct)
        drawn[name] = distinct[:MOST_PER_SOURCE]
    return drawn


def _said(prompt: str) -> str:
    """What two prompts have in common that say the same."""
    return re.sub(r"\W+", " ", prompt.lower()).strip()


def is_kept_apart(prompt: str) -> bool:
    """By the text alone, so that no later change of the mixture moves a prompt to the other side."""
    return int.from_bytes(hashlib.sha256(_said(prompt).encode()).digest()[:4], "big") % KEPT_APART == 0


def split(sources: dict[str, list[str]], forbidden: set[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """((source, prompt) to train on, shuffled; those kept apart, in the sources' own shares)."""
    pairs = [
        (name, prompt) for name, prompts in sources.items() for prompt in prompts if _said(prompt) not in forbidden
    ]
    random.Random(SEED).shuffle(pairs)
    train = [pair for pair in pairs if not is_kept_apart(pair[1])]
    return train, [pair for pair in pairs if is_kept_apart(pair[1])][:_IN_DISTRIBUTION]


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    """One prompt a line, as a conversation of one user turn."""
    records = ({"messages": [{"role": "user", "content": prompt}], "source": source} for source, prompt in pairs)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


def main() -> None:
    """Command line: gather, split, write, print counts."""
    parser = argparse.ArgumentParser(description="Gather the prompts of the SmolLM2 recipe.")
    parser.add_argument("--packages", type=Path, default=Path("data/smollm2/packages"), help="folder of packages")
    parser.add_argument("--out", type=Path, default=Path("data/smollm2/prompts"), help="folder of the five files")
    arguments = parser.parse_args()
    held_out = packages.held_out(arguments.packages)
    forbidden = {_said(prompt) for prompts in held_out.values() for prompt in prompts}
    sources = training_sources(arguments.packages)
    train, in_distribution = split(sources, forbidden)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "train.jsonl", train)
    write(arguments.out / "indistribution.jsonl", in_distribution)
    for name, prompts in held_out.items():
        write(arguments.out / f"{name}.jsonl", [(name, prompt) for prompt in prompts])
    for name in sources:
        print(f"{name}: {sum(source == name for source, _ in train):,} to train on")
    print(
        f"{len(train):,} to train on, {len(in_distribution)} kept apart, {sum(map(len, held_out.values())):,} held out"
    )


if __name__ == "__main__":
    main()
