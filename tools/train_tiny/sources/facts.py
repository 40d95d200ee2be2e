"""Questions about countries, elements and words, answered from tables."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from train_tiny.dialogue import Dialogue
from train_tiny.material import Country, Element, Sense
from train_tiny.sources.style import asked, dialogue

Turn = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Tables:
    countries: Sequence[Country]
    elements: Sequence[Element]
    senses: Sequence[Sense]


def draw(rng: random.Random, tables: Tables) -> Dialogue:
    """Questions about one to five facts."""
    count = rng.choice((1, 1, 2, 3, 5))
    makers = (_country, _country, _element, _word, _word)
    return dialogue(rng, [rng.choice(makers)(rng, tables) for _ in range(count)])


def _country(rng: random.Random, tables: Tables) -> Turn:
    c = rng.choice(tables.countries)
    options = [
        ((f"What is the capital of {c.name}?", f"Which city is the capital of {c.name}?", f"Name the capital of {c.name}.", f"capital of {c.name}"), f"The capital of {c.name} is {c.capital}."),
        ((f"Which country has the capital {c.capital}?", f"{c.capital} is the capital of which country?"), f"{c.capital} is the capital of {c.name}."),
        ((f"Where is {c.name}?", f"In which region is {c.name}?", f"On which continent is {c.name}?"), f"{c.name} is in {c.subregion}." if c.subregion != c.region else f"{c.name} is in {c.region}."),
        ((f"What is the currency of {c.name}?", f"Which currency does {c.name} use?"), f"The currency code of {c.name} is {c.currency}."),
    ]  # fmt: skip
    if c.languages:
        options.append(
            (
                (
                    f"Which language is spoken in {c.name}?",
                    f"What language do people speak in {c.name}?",
                ),
                f"In {c.name}, people speak {' and '.join(c.languages[:2])}.",
            )
        )
    if c.demonym:
        options.append(
            (
                (f"What do you call a person from {c.name}?",),
                f"A person from {c.name} is called {c.demonym}.",
            )
        )
    questions, answer = options[0] if rng.random() < 0.4 else rng.choice(options)
    return asked(rng, rng.choice(questions)), f"The user asks about {c.name}. {answer}", answer


def _element(rng: random.Random, tables: Tables) -> Turn:
    e = rng.choice(tables.elements)
    questions, answer = rng.choice((
        ((f"What is the chemical symbol of {e.name.lower()}?", f"What is the symbol for {e.name.lower()}?"), f"The symbol of {e.name.lower()} is {e.symbol}."),
        ((f"What is the atomic number of {e.name.lower()}?", f"Which number does {e.name.lower()} have?"), f"The atomic number of {e.name.lower()} is {e.number}."),
        ((f"Which element has the symbol {e.symbol}?", f"What does {e.symbol} stand for in chemistry?"), f"{e.symbol} is the symbol of {e.name.lower()}."),
    ))  # fmt: skip
    return asked(rng, rng.choice(questions)), f"The element is {e.name.lower()}. {answer}", answer


def _word(rng: random.Random, tables: Tables) -> Turn:
    s = rng.choice(tables.senses)
    question = rng.choice(
        (
            f"What does {s.word} mean?",
            f"What does the word {s.word} mean?",
            f"Define {s.word}.",
            f"What is the meaning of {s.word}?",
            f"Explain the word {s.word}.",
        )
    )
    article = {"noun": "a noun", "verb": "a verb", "adj": "an adjective", "adv": "an adverb"}[
        s.kind
    ]
    answer = rng.choice(
        (
            f"{s.word.capitalize()} means: {s.meaning}.",
            f"{s.word.capitalize()} is {article}. It means: {s.meaning}.",
        )
    )
    if s.example and rng.random() < 0.5:
        answer += f" Example: {s.example[0].upper()}{s.example[1:]}."
    return (
        asked(rng, question),
        f'The word is "{s.word}". {s.word.capitalize()} is {article}.',
        answer,
    )
