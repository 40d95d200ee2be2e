"""Facts hidden in a longer text, asked for behind it."""

import random
from collections.abc import Callable, Sequence

from train_tiny import words as w
from train_tiny.dialogue import Dialogue
from train_tiny.sources.style import dialogue

Fact = tuple[str, str, str, str]  # statement, question, answer, value


def draw(rng: random.Random, filler: Sequence[str]) -> Dialogue:
    """A text of any length with facts in it, and questions about some of them."""
    sentences = rng.choice((2, 4, 8, 15, 30, 60, 110))
    return _asked_about(rng, filler, sentences, rng.choice((1, 2, 3, 5, 8)), at_most=5)


def far(rng: random.Random, filler: Sequence[str]) -> Dialogue:
    """A long text with many facts, and questions about each of them."""
    return _asked_about(rng, filler, rng.randint(30, 105), 8, at_most=8)


def _asked_about(
    rng: random.Random, filler: Sequence[str], sentences: int, num_facts: int, at_most: int
) -> Dialogue:
    facts = _facts(rng, num_facts)
    text = hide(rng, [f[0] for f in facts], [rng.choice(filler) for _ in range(sentences)])
    rng.shuffle(facts)
    opening = rng.choice(
        ("Read this text.", "Here are my notes.", "Remember this:", "Please read:", "")
    )
    turns = []
    for number, (statement, question, answer, value) in enumerate(facts[:at_most]):
        said = question if number else f"{opening}\n\n{text}\n\n{question}".strip()
        turns.append(
            (said, f"The text says: {statement}", rng.choice((answer, answer, f"{value}.")))
        )
    return dialogue(rng, turns, with_system=0.1)


def hide(rng: random.Random, statements: Sequence[str], filler: Sequence[str]) -> str:
    """Statements at random places between the sentences of a text."""
    text = list(filler)
    for statement in statements:
        text.insert(rng.randint(0, len(text)), statement)
    return " ".join(text)


def echo(rng: random.Random, filler: Sequence[str]) -> Dialogue:
    """Repeat something word for word."""
    kind = rng.random()
    if kind < 0.5:
        text = rng.choice(filler)
    elif kind < 0.8:
        text = " ".join(
            rng.choices(w.THINGS + w.ANIMALS + w.COLORS + w.FIRST, k=rng.randint(2, 10))
        )
    else:
        text = " ".join(str(rng.randint(0, 9999)) for _ in range(rng.randint(1, 6)))
    question = rng.choice(
        (
            f"Repeat: {text}",
            f"Repeat after me: {text}",
            f"Say this again: {text}",
            f'Repeat the words "{text}".',
            f"Copy this text: {text}",
        )
    )
    return dialogue(rng, [(question, "I only need to repeat the text.", text)])


def code_fact(rng: random.Random) -> Fact:
    """A number that belongs to a thing."""
    color, thing = rng.choice(w.COLORS), rng.choice(w.THINGS)
    value = str(rng.randint(100, 999))
    return (
        f"The code of the {color} {thing} is {value}.",
        rng.choice(
            (
                f"What is the code of the {color} {thing}?",
                f"Which code does the {color} {thing} have?",
            )
        ),
        f"The code of the {color} {thing} is {value}.",
        value,
    )


def _facts(rng: random.Random, count: int) -> list[Fact]:
    found: dict[str, Fact] = {}
    makers: Sequence[Callable[[random.Random], Fact]] = (
        code_fact,
        code_fact,
        _home,
        _owner,
        _meeting,
        _price,
        _word,
    )
    while len(found) < count:
        fact = rng.choice(makers)(rng)
        found.setdefault(fact[1], fact)
    return list(found.values())


def _home(rng: random.Random) -> Fact:
    name, city = rng.choice(w.FIRST), rng.choice(w.CITIES)
    return f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}.", city


def _owner(rng: random.Random) -> Fact:
    name, thing = rng.choice(w.FIRST), f"{rng.choice(w.COLORS)} {rng.choice(w.THINGS)}"
    return (
        f"The {thing} belongs to {name}.",
        f"Who owns the {thing}?",
        f"The {thing} belongs to {name}.",
        name,
    )


def _meeting(rng: random.Random) -> Fact:
    name, day, hour = rng.choice(w.FIRST), rng.choice(w.DAYS), rng.randint(1, 12)
    return (
        f"The meeting with {name} is on {day} at {hour} o'clock.",
        rng.choice((f"When is the meeting with {name}?", f"When do I meet {name}?")),
        f"The meeting with {name} is on {day} at {hour} o'clock.",
        f"On {day} at {hour} o'clock",
    )


def _price(rng: random.Random) -> Fact:
    product, price = rng.choice(w.PRODUCTS), rng.randint(5, 999)
    return (
        f"The {product} costs {price} dollars.",
        f"How much does the {product} cost?",
        f"The {product} costs {price} dollars.",
        f"{price} dollars",
    )


def _word(rng: random.Random) -> Fact:
    place, word = rng.choice(w.PLACES), rng.choice(w.ANIMALS)
    return (
        f"The password of the {place} is {word}.",
        f"What is the password of the {place}?",
        f"The password of the {place} is {word}.",
        word,
    )
