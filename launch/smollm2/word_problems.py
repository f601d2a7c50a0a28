"""Word problems in school arithmetic, made from templates and word lists that were written for this project.

Comes in: nothing. Goes out: distinct prompts, drawn by a generator of their own. None has anything to do with the problems
of a published test set.
"""

import random

from launch.drawn import distinct, words

_NAMES = words(
    "Anna Ben Clara David Emma Felix Greta Hugo Irene Jack Karen Leo Maria Nina Oscar Paula Quentin Rosa Simon Tina "
    "Ursula Victor Wendy Xavier Yara Zoe Alice Bruno Celia Daniel Elena Frank Gloria Henry Ivy Jonas Kate Laura"
)
_ITEMS = words(
    "apples pencils stickers marbles cookies books shells stamps postcards balloons candles oranges coins buttons "
    "beads tickets flowers eggs muffins photos"
)
_JOBS = words(
    "mows lawns,paints fences,walks dogs,washes cars,babysits,delivers newspapers,cleans windows,repairs bikes", ","
)
_PLACES = words("school,the market,the library,the park,a farm,the station,the lake,the museum", ",")
_TEMPLATES = (
    "{a} has {n} {item}. {b} gives {a} {m} more {item}, and then {a} loses {k} of them. How many {item} does {a} have now?",
    "{a} buys {n} {item} for ${k} each and pays with a ${big} bill. How much change does {a} get?",
    "{a} {job} for ${k} an hour. Last week {a} worked {n} hours, this week {m} hours. How much did {a} earn in both weeks?",
    "A box holds {k} {item}. {a} has {n} full boxes and {m} loose {item}. How many {item} is that in total?",
    "{a} shares {big} {item} equally among {k} friends. How many {item} does each friend get, and how many are left over?",
    "{a} walks {k} kilometers to {place} every day, {n} days a month. How far does {a} walk in {m} months?",
    "{a} is {n} years old. {b} is {k} years older than {a}. How old will {b} be in {m} years?",
    "There are {n} rows of seats with {k} seats each at {place}. {m} seats are empty. How many seats are taken?",
    "{a} reads {n} pages a day. The book has {big} pages. How many days does {a} need to finish it?",
    "{a} saves ${k} every week. After {n} weeks {a} spends ${m}. How much money is left?",
    "A recipe needs {k} cups of flour for {m} people. How many cups does {a} need for {n} people?",
    "{a} had {big} {item}. {a} gave half of them to {b} and {k} of the rest to a neighbor. How many are left?",
    "A train leaves {place} at {k} o'clock and travels at {big} kilometers per hour. How far has it come after {m} hours?",
    "{a} and {b} together have {big} {item}. {a} has {n} more than {b}. How many does each of them have?",
    "{a} sold {n} {item} on Monday, twice as many on Tuesday, and {m} fewer than that on Wednesday. How many in all?",
    "A shirt costs ${big}. It is {k}0% off this week. What does {a} pay for {m} shirts?",
    "{a} plants {n} trees in each of {k} rows at {place}. Of these, {m} do not grow. How many trees grow?",
    "{a} needs {n} minutes for one lap around {place}. How many hours and minutes are {m} laps?",
    "The perimeter of a rectangle is {big} meters and one side is {k} meters long. How long is the other side?",
    "{a} scored {n}, {m} and {big} points in three games. What is the average number of points?",
)


def word_problems(count: int, seed: int) -> list[str]:
    """``count`` distinct problems."""
    return distinct(count, f"{seed} word problems", _problem)


def _problem(drawn: random.Random) -> str:
    first, second = drawn.sample(_NAMES, 2)
    return drawn.choice(_TEMPLATES).format(
        a=first,
        b=second,
        item=drawn.choice(_ITEMS),
        job=drawn.choice(_JOBS),
        place=drawn.choice(_PLACES),
        k=drawn.randint(2, 9),
        m=drawn.randint(2, 20),
        n=drawn.randint(5, 40),
        big=drawn.randint(40, 200),
    )
