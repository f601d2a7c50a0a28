"""What the made-up prompts have in common: word lists, and draws until there are enough different ones."""

import random
from collections.abc import Callable


def words(text: str, separator: str = " ") -> list[str]:
    """A list written as one text."""
    return text.split(separator)


def distinct(count: int, key: str, make: Callable[[random.Random], str]) -> list[str]:
    """``count`` different texts in the order in which they were drawn, from a generator that ``key`` seeds."""
    drawn = random.Random(key)
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(drawn)] = None
    return list(found)
