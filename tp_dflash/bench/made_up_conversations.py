"""Conversations that no one held, for measuring: real English prose (Python's own language reference) cut into turns.

In: a number and a seed. Out: a JSONL file in OpenAI's form.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from pydoc_data.topics import topics

_MOST_QUESTIONS = 4
_QUESTION_WORDS, _ANSWER_WORDS = 25, 120


def write_conversations(path: Path, count: int, seed: int = 0) -> None:
    """One to four questions each, with answers of 120 words in the mean: as long as those of common chat data sets."""
    words = " ".join(topics.values()).split(" ")
    drawn = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            messages = []
            for _ in range(drawn.randint(1, _MOST_QUESTIONS)):
                for role, mean in (("user", _QUESTION_WORDS), ("assistant", _ANSWER_WORDS)):
                    messages.append({"role": role, "content": _stretch(words, mean, drawn)})
            file.write(json.dumps({"messages": messages}) + "\n")


def _stretch(words: list[str], mean: int, drawn: random.Random) -> str:
    """Consecutive words; lengths are exponential, as they roughly are in chats. Never blank."""
    start = drawn.randrange(len(words))
    return " ".join(words[start : start + 1 + int(drawn.expovariate(1 / mean))]).strip() or "Yes."
