"""The quickstart's prompts: short requests made from templates and word lists, all written for this project.

Comes in: nothing. Goes out: `prompts()`, kind -> distinct prompts in a fixed order. A kind is a request that a small
chat model answers in one regular way, so that a small drafter has something to learn in a few hundred steps. What is
true of the answers (a 135M model miscounts, and its letters go nowhere) does not matter here, only what is said next.
"""

import random

from launch.drawn import words

PROMPTS_PER_KIND = 48
SEED = 20261130


NOUNS = words(
    "stone river garden window tree moon lamp paper horse bread cloud chair bottle basket mountain pencil train boat "
    "spoon carpet button mirror hammer ladder pillow candle blanket bucket rabbit turtle tiger monkey spider flower "
    "forest island desert valley bridge tower castle market engine ticket wallet jacket helmet guitar violin rocket"
)
NAMES = words(
    "Anna Ben Clara David Emma Felix Greta Hugo Irene Jack Karen Leo Maria Nina Oscar Paula Quentin Rosa Simon Tina "
    "Ursula Victor Wendy Xavier Yara Zoe Alice Bruno Celia Daniel Elena Frank Gloria Henry Ivy Jonas Kate Laura Martin "
    "Nora Oliver Peter Rita Samuel Teresa Vera Walter Yvonne"
)
JOBS = words(
    "baker nurse teacher gardener driver cook plumber carpenter painter farmer librarian dentist lawyer pilot waiter "
    "cashier tailor florist barber electrician mechanic accountant translator journalist photographer musician actor "
    "dancer architect engineer chemist pharmacist biologist secretary receptionist salesperson butcher fisherman "
    "firefighter lifeguard tutor editor designer programmer tester technician surveyor analyst"
)
COLOURS = words("red blue green black white pink gray brown purple orange yellow gold")
ATTRIBUTES = words("name color size weight price age")
EVENTS = words(
    "a picnic,a dinner,a concert,a birthday party,a garden party,a movie night,a football match,a lunch", ","
)
THINGS = words("vase key window lamp cup phone chair book")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


def prompts() -> dict[str, list[str]]:
    """Kind -> up to `PROMPTS_PER_KIND` distinct prompts, shuffled by a generator of the kind's own."""
    numbers = range(2, 21)
    every_kind = {
        "word ten times": [f'Write the word "{noun}" 10 times.' for noun in NOUNS],
        "list of one word": [f'Make a numbered list of 10 items. Each item is the word "{noun}".' for noun in NOUNS],
        "python arithmetic": [
            f"Write a Python function that {what}."
            for n in numbers
            for what in (f"adds {n} to a number", f"subtracts {n} from a number", f"multiplies a number by {n}")
        ],
        "python check": [
            f"Write a Python function that checks whether a number is {what} {n}."
            for n in numbers
            for what in ("greater than", "less than", "divisible by")
        ],
        "python string": [
            f'Write a Python function that checks whether a string {what} "{noun}".'
            for noun in NOUNS
            for what in ("starts with", "ends with", "contains")
        ],
        "python class": [
            f"Write a Python class named {noun.capitalize()} with a {what}." for noun in NOUNS for what in ATTRIBUTES
        ],
        "thanks": [f"Write a thank-you note to {name} for the {noun}." for name in NAMES for noun in NOUNS],
        "invitation": [f"Write an invitation to {name} for {event}." for name in NAMES for event in EVENTS],
        "apology": [f"Write a letter of apology to {name} for the broken {th}." for name in NAMES for th in THINGS],
        "meeting": [f"Write an email to {name} about the meeting on {day}." for name in NAMES for day in DAYS],
        "cover letter": [f"Write a cover letter for a job as a {job}." for job in JOBS],
        "two colours": [f"Continue the pattern: {a}, {b}, {a}, {b}, {a}," for a in COLOURS for b in COLOURS if a != b],
        "numbers": [
            f"Write the numbers from {low} to {low + many}, separated by commas."
            for low in range(1, 60, 3)
            for many in (10, 15, 20)
        ],
    }
    return {kind: _drawn(kind, texts) for kind, texts in every_kind.items()}


def _drawn(kind: str, texts: list[str]) -> list[str]:
    return random.Random(f"{SEED} {kind}").sample(texts, min(PROMPTS_PER_KIND, len(texts)))
