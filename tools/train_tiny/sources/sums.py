"""Arithmetic and small puzzles with exact answers."""

import random
from dataclasses import replace

from train_tiny import words as w
from train_tiny.dialogue import Dialogue
from train_tiny.sources.style import EFFORTS, asked, dialogue

Turn = tuple[str, str, str]


def draw(rng: random.Random) -> Dialogue:
    """One to six tasks."""
    if rng.random() < 0.5:
        return paper(rng)
    makers = (_difference, _difference, _product, _compare, _story, _sort, _count)
    return dialogue(
        rng, [rng.choice(makers)(rng) for _ in range(rng.choice((1, 2, 4, 6)))], with_system=0.05
    )


def paper(rng: random.Random) -> Dialogue:
    """Sums, and nothing else."""
    return rng.choice((plain, thought))(rng)


def sum_question(rng: random.Random, a: int, b: int) -> str:
    """A sum in one of its phrasings."""
    return rng.choice((f"What is {a} + {b}?", f"{a} + {b} = ?", f"{a} + {b}", f"Calculate {a} + {b}.", f"How much is {a} plus {b}?", f"What is the sum of {a} and {b}?", f"Add {a} and {b}.", f"{a}+{b}=?"))  # fmt: skip


def is_held_out(a: int, b: int) -> bool:
    """One sum in twenty is only ever asked in the evaluation."""
    return (a * 100 + b) * 2654435761 % 2**32 % 20 == 0


def _pair(rng: random.Random) -> tuple[int, int]:
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if not is_held_out(a, b):
            return a, b


def _steps(a: int, b: int) -> str:
    """As on paper: digits from the right, with what is carried. Each step can be known by heart."""
    ones, carried = a % 10 + b % 10, " + 1" if a % 10 + b % 10 > 9 else ""
    tens = a // 10 + b // 10 + ones // 10
    return f"{a % 10} + {b % 10} = {ones} and {a // 10} + {b // 10}{carried} = {tens}"


def _sum(rng: random.Random) -> Turn:
    a, b = _pair(rng)
    question = asked(rng, sum_question(rng, a, b))
    return question, f"{a} + {b}: {_steps(a, b)}, so {a + b}.", f"{a} + {b} = {a + b}."


def plain(rng: random.Random) -> Dialogue:
    """Sums answered without thinking first: the steps are part of the answer."""
    turns = []
    for _ in range(rng.choice((1, 2, 4))):
        a, b = _pair(rng)
        question = asked(rng, sum_question(rng, a, b))
        turns.append((question, "", f"{a} + {b}: {_steps(a, b)}, so {a} + {b} = {a + b}."))
    return replace(dialogue(rng, turns, with_system=0.05), effort=None)


def thought(rng: random.Random) -> Dialogue:
    """One sum, thought about."""
    return replace(dialogue(rng, [_sum(rng)], with_system=0.05), effort=rng.choice(EFFORTS))


def _difference(rng: random.Random) -> Turn:
    a, b = sorted((rng.randint(0, 99), rng.randint(0, 99)), reverse=True)
    question = rng.choice(
        (
            f"What is {a} - {b}?",
            f"{a} - {b} = ?",
            f"How much is {a} minus {b}?",
            f"Subtract {b} from {a}.",
        )
    )
    steps = (
        f"{a} - {b} = {a} - {b // 10 * 10} - {b % 10} = {a - b // 10 * 10} - {b % 10} = {a - b}."
    )
    return (
        asked(rng, question),
        steps,
        rng.choice((f"{a} - {b} = {a - b}.", f"The answer is {a - b}.")),
    )


def _product(rng: random.Random) -> Turn:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    question = rng.choice(
        (
            f"What is {a} * {b}?",
            f"What is {a} times {b}?",
            f"Multiply {a} by {b}.",
            f"{a} x {b} = ?",
        )
    )
    return (
        asked(rng, question),
        f"{a} times {b} is {a * b}.",
        rng.choice((f"{a} * {b} = {a * b}.", f"The answer is {a * b}.")),
    )


def _compare(rng: random.Random) -> Turn:
    a, b = rng.sample(range(200), 2)
    larger = rng.random() < 0.5
    word, answer = ("larger", max(a, b)) if larger else ("smaller", min(a, b))
    return (
        asked(rng, f"Which is {word}, {a} or {b}?"),
        f"Compare {a} and {b}: {min(a, b)} < {max(a, b)}.",
        f"{answer} is {word}.",
    )


def _story(rng: random.Random) -> Turn:
    name, fruit = rng.choice(w.FIRST), rng.choice(w.FRUIT)
    a, b = _pair(rng)
    if rng.random() < 0.5:
        question = (
            f"{name} has {a} {fruit} and buys {b} more. How many {fruit} does {name} have now?"
        )
        return question, f"{a} + {b} = {a + b}.", f"{name} has {a + b} {fruit} now."
    a, b = max(a, b), min(a, b)
    question = f"{name} has {a} {fruit} and eats {b} of them. How many {fruit} are left?"
    return question, f"{a} - {b} = {a - b}.", f"{a - b} {fruit} are left."


def _sort(rng: random.Random) -> Turn:
    numbers = rng.sample(range(100), rng.randint(3, 5))
    text, answer = ", ".join(map(str, numbers)), ", ".join(map(str, sorted(numbers)))
    return (
        asked(rng, f"Sort these numbers: {text}."),
        f"From the smallest to the largest: {answer}.",
        f"{answer}.",
    )


def _count(rng: random.Random) -> Turn:
    items = rng.choices(w.FRUIT, k=rng.randint(2, 6))
    question = f"How many words are in this list: {', '.join(items)}?"
    return (
        question,
        f"I count them: {', '.join(f'{i + 1} {x}' for i, x in enumerate(items))}.",
        f"There are {len(items)} words.",
    )
