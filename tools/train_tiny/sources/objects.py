"""Answers that follow a JSON schema: a text goes in, an object comes out."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from train_tiny import words as w
from train_tiny.dialogue import Dialogue, assistant, system, user
from train_tiny.sources.style import SYSTEMS, effort

Schema = dict[str, object]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
LIST: Schema = {"type": "array", "items": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Field:
    """A property: its possible keys, its schema, and a value with the words that tell it."""

    keys: tuple[str, ...]
    schema: Schema
    told: Callable[[random.Random], tuple[object, str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """Things that objects describe; the first field opens the text."""

    fields: tuple[Field, ...]


def enum(*options: str) -> Schema:
    return {"type": "string", "enum": list(options)}


def _person(rng: random.Random) -> tuple[object, str]:
    name = f"{rng.choice(w.FIRST)} {rng.choice(w.LAST)}"
    return name, name


def _age(rng: random.Random) -> tuple[object, str]:
    age = rng.randint(5, 95)
    return age, rng.choice((f"is {age} years old", f"is {age}", f"turned {age} this year"))


def _one(options: Sequence[str], *forms: str) -> Callable[[random.Random], tuple[object, str]]:
    def told(rng: random.Random) -> tuple[object, str]:
        value = rng.choice(options)
        return value, rng.choice(forms).format(value)

    return told


def _number(low: int, high: int, *forms: str) -> Callable[[random.Random], tuple[object, str]]:
    def told(rng: random.Random) -> tuple[object, str]:
        value = rng.randint(low, high)
        return value, rng.choice(forms).format(value)

    return told


def _yes(positive: str, negative: str) -> Callable[[random.Random], tuple[object, str]]:
    def told(rng: random.Random) -> tuple[object, str]:
        value = rng.random() < 0.5
        return value, positive if value else negative

    return told


def _some(options: Sequence[str], form: str) -> Callable[[random.Random], tuple[object, str]]:
    def told(rng: random.Random) -> tuple[object, str]:
        values = rng.sample(options, rng.randint(1, 3))
        text = values[0] if len(values) == 1 else ", ".join(values[:-1]) + " and " + values[-1]
        return values, form.format(text)

    return told


def _price(rng: random.Random) -> tuple[object, str]:
    price = (
        rng.randint(1, 999)
        if rng.random() < 0.6
        else rng.randint(1, 99) + rng.choice((0.5, 0.25, 0.99, 0.75))
    )
    return price, rng.choice(
        (f"costs {price} dollars", f"is sold for {price} dollars", f"has a price of {price}")
    )


def _mail(rng: random.Random) -> tuple[object, str]:
    mail = f"{rng.choice(w.FIRST).lower()}@{rng.choice(w.COMPANIES).lower()}.com"
    return mail, rng.choice((f"has the email {mail}", f"can be reached at {mail}"))


KINDS = (
    Kind((
        Field(("name", "full_name", "person"), STRING, _person),
        Field(("age", "years"), INTEGER, _age),
        Field(("city", "location", "town"), STRING, _one(w.CITIES, "lives in {}", "comes from {}")),
        Field(("job", "profession", "occupation"), STRING, _one(w.JOBS, "works as a {}", "is a {}")),
        Field(("email", "mail"), STRING, _mail),
        Field(("hobbies", "interests"), LIST, _some(w.HOBBIES, "likes {}")),
        Field(("married", "is_married"), BOOLEAN, _yes("is married", "is not married")),
        Field(("children", "num_children"), INTEGER, _number(0, 6, "has {} children")),
        Field(("pet",), STRING, _one(w.ANIMALS, "has a {}", "owns a {}")),
    )),
    Kind((
        Field(("product", "name", "item"), STRING, _one(w.PRODUCTS, "The {}", "This {}")),
        Field(("price", "cost"), NUMBER, _price),
        Field(("color", "colour"), STRING, _one(w.COLORS, "is {}", "comes in {}")),
        Field(("in_stock", "available"), BOOLEAN, _yes("is in stock", "is not in stock")),
        Field(("quantity", "count"), INTEGER, _number(1, 200, "is packed in boxes of {}", "was ordered {} times")),
        Field(("brand", "company"), STRING, _one(w.COMPANIES, "is made by {}", "comes from {}")),
        Field(("size",), enum("small", "medium", "large"), _one(("small", "medium", "large"), "has the size {}", "is {} in size")),
        Field(("rating", "stars"), INTEGER, _number(1, 5, "has {} stars", "is rated {} of 5")),
    )),
    Kind((
        Field(("event", "title", "name"), STRING, _one(("The concert", "The meeting", "The party", "The workshop", "The lunch", "The exam", "The match", "The lesson"), "{}")),
        Field(("day", "weekday"), enum(*w.DAYS), _one(w.DAYS, "is on {}", "takes place on {}")),
        Field(("hour", "time"), INTEGER, _number(1, 12, "starts at {} o'clock", "begins at {}")),
        Field(("place", "location", "venue"), STRING, _one(w.PLACES, "will be at the {}", "is held in the {}")),
        Field(("guests", "people", "attendees"), INTEGER, _number(2, 90, "has {} guests", "is planned for {} people")),
        Field(("free", "is_free"), BOOLEAN, _yes("is free", "is not free")),
        Field(("month",), STRING, _one(w.MONTHS, "happens in {}")),
    )),
    Kind((
        Field(("city", "place", "location"), STRING, _one(w.CITIES, "{}", "The city of {}")),
        Field(("temperature", "degrees", "temp"), INTEGER, _number(-10, 39, "has {} degrees today", "is at {} degrees")),
        Field(("weather", "sky", "condition"), STRING, _one(w.WEATHER, "is {}", "will be {} today")),
        Field(("wind", "wind_speed"), INTEGER, _number(0, 90, "has wind of {} km/h")),
        Field(("rain", "is_raining"), BOOLEAN, _yes("has rain", "has no rain")),
    )),
    Kind((
        Field(("animal", "pet", "species"), STRING, _one(w.ANIMALS, "The {}", "My {}")),
        Field(("name",), STRING, _one(w.FIRST, "is called {}", "has the name {}")),
        Field(("age",), INTEGER, _age),
        Field(("color", "fur"), STRING, _one(w.COLORS, "is {}")),
        Field(("food", "favorite_food"), STRING, _one(w.FOODS, "likes {}", "eats {}")),
        Field(("mood",), STRING, _one(w.MOODS, "is often {}", "looks {}")),
    )),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A text, the schema, and the one object that is right."""

    text: str
    schema: Schema
    value: dict[str, object]


def _invented(rng: random.Random) -> Task:
    """Keys that no kind has, so that they are read from the schema and not known by heart."""
    keys = rng.sample(w.THINGS + w.TOPICS + w.FOODS + w.PRODUCTS, rng.randint(1, 5))
    value: dict[str, object] = {}
    properties: dict[str, object] = {}
    for key in keys:
        kind = rng.choice(("string", "string", "integer", "boolean"))
        properties[key] = {"type": kind}
        if kind == "string":
            value[key] = rng.choice(w.FIRST + w.CITIES + w.COLORS + w.ANIMALS + w.JOBS)
        else:
            value[key] = rng.randint(0, 9999) if kind == "integer" else rng.random() < 0.5
    told = [f"{k} is {str(v).lower() if isinstance(v, bool) else v}" for k, v in value.items()]
    text = (
        f"The {', the '.join(told)}."
        if rng.random() < 0.5
        else "; ".join(told).replace(" is ", ": ")
    )
    return Task(text, {"type": "object", "properties": properties, "required": keys}, value)


def task(rng: random.Random) -> Task:
    """Two to five properties of something."""
    if rng.random() < 0.25:
        return _invented(rng)
    kind = rng.choice(KINDS)
    picked = [
        kind.fields[0],
        *rng.sample(kind.fields[1:], rng.randint(1, min(4, len(kind.fields) - 1))),
    ]
    keys = [rng.choice(field.keys) for field in picked]
    told = [field.told(rng) for field in picked]
    phrases = [words for _, words in told[1:]]
    text = (
        told[0][1]
        + " "
        + (", ".join(phrases[:-1]) + " and " if len(phrases) > 1 else "")
        + phrases[-1]
        + "."
    )
    if rng.random() < 0.3:  # in another order than the schema
        order = rng.sample(range(len(keys)), len(keys))
    else:
        order = list(range(len(keys)))
    value = {keys[i]: told[i][0] for i in order}
    schema: Schema = {
        "type": "object",
        "properties": {keys[i]: picked[i].schema for i in order},
        "required": list(value),
    }
    if rng.random() < 0.6:
        schema["additionalProperties"] = False
    return Task(text, schema, value)


def draw(rng: random.Random) -> Dialogue:
    """One text to one object, the schema in the request's format or in the user's words."""
    made = task(rng)
    thinking = effort(rng)
    answer = json.dumps(made.value, ensure_ascii=False)
    question = request(rng, made)
    reasoning = "The fields are " + ", ".join(f"{k}: {v}" for k, v in made.value.items()) + "."
    messages = [system(rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    schema: object = made.schema
    if rng.random() < 0.25:
        schema = {"type": "json_object"}
        question += f" Use the keys {', '.join(made.value)}."
    return Dialogue(
        (*messages, user(question), assistant(answer, reasoning)), thinking, schema=schema
    )


def request(rng: random.Random, made: Task) -> str:
    """The text with what to do about it."""
    return rng.choice(
        (
            "{}",
            "Extract the data: {}",
            "{} Give me JSON.",
            "Turn this into JSON: {}",
            "Read this and fill in the fields: {}",
        )
    ).format(made.text)
