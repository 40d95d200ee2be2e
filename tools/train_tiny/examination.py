"""Questions with known answers, fixed by their seeds, and whether an answer is right."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jsonschema

from diptych.text.chat import Message
from diptych.text.tools import Tool
from train_tiny.dialogue import Dialogue, assistant, user
from train_tiny.material import pairs
from train_tiny.sources import calls, objects, recall, sums, talk
from train_tiny.sources.style import EFFORTS, repeats

DISTANCES = (60, 250, 500, 1000, 1800)  # tokens between a fact and its question, about
_NOTHING = assistant("")  # in the place of the answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]  # name, arguments as JSON text
    finished: bool  # by itself


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, under which heading it counts, and who judges: each measure true or false."""

    subject: str
    dialogue: Dialogue
    judge: Callable[[Answer], dict[str, bool]]
    max_tokens: int


def questions() -> Iterator[Question]:
    """The whole examination."""
    for number in range(100):
        yield _sum(random.Random(f"examination/sum/{number}"), thinking=number % 2 == 0)
    for distance in DISTANCES:
        for number in range(20):
            yield _recall(random.Random(f"examination/recall/{distance}/{number}"), distance)
    for number in range(60):
        yield _object(random.Random(f"examination/object/{number}"), thinking=number % 2 == 0)
    for number in range(60):
        yield _call(random.Random(f"examination/call/{number}"), thinking=number % 2 == 0)
    for number in range(40):
        yield _talk(random.Random(f"examination/talk/{number}"), thinking=number % 2 == 0)


def _ask(
    text: str, *, thinking: bool, tools: Sequence[Tool] = (), schema: object = None
) -> Dialogue:
    messages: tuple[Message, ...] = (user(text), _NOTHING)
    return Dialogue(messages, EFFORTS[0] if thinking else None, tools=tuple(tools), schema=schema)


def _sum(rng: random.Random, *, thinking: bool) -> Question:
    a, b = 0, 0
    while not (sums.is_held_out(a, b) and min(a, b) > 9):
        a, b = rng.randint(10, 99), rng.randint(10, 99)
    dialogue = _ask(sums.sum_question(rng, a, b), thinking=thinking)

    def judge(answer: Answer) -> dict[str, bool]:
        numbers = re.findall(r"\d+", answer.text)
        return {"two-digit sums never seen": bool(numbers) and numbers[-1] == str(a + b)}

    return Question("sum", dialogue, judge, 60)


def _recall(rng: random.Random, distance: int) -> Question:
    """A fact at the beginning of a text, sentences up to the distance, and the question."""
    statement, question, _, value = recall.code_fact(rng)
    filler = [
        a for _, answers in pairs("chat_en") for a in answers if "\n" not in a and len(a) < 90
    ]
    text, words = [statement], 0
    while words < distance:
        sentence = rng.choice(filler)
        text.append(sentence)
        words += round(len(sentence) / 3.6)
    dialogue = _ask(f"Read this text.\n\n{' '.join(text)}\n\n{question}", thinking=False)

    def judge(answer: Answer) -> dict[str, bool]:
        return {f"recall over {distance:,} tokens": value in answer.text}

    return Question("recall", dialogue, judge, 40)


def _object(rng: random.Random, *, thinking: bool) -> Question:
    made = objects.task(rng)
    dialogue = _ask(objects.request(rng, made), thinking=thinking, schema=made.schema)

    def judge(answer: Answer) -> dict[str, bool]:
        value = _parsed(answer.text)
        return {
            "JSON valid by its schema": _fits(value, made.schema),
            "JSON with every value right": value == made.value,
        }

    return Question("object", dialogue, judge, 160)


def _call(rng: random.Random, *, thinking: bool) -> Question:
    tools = calls.make_tools(rng, rng.randint(1, 4))
    task = calls.make_task(rng, rng.choice(tools))
    offered = [made.tool for made in tools]
    dialogue = _ask(task.question, thinking=thinking, tools=offered)
    schemas = {tool.name: tool.parameters for tool in offered}

    def judge(answer: Answer) -> dict[str, bool]:
        name, text = answer.calls[0] if len(answer.calls) == 1 else ("", "")
        value = _parsed(text)
        return {
            "tool call valid": name in schemas and _fits(value, schemas[name]),
            "tool call right": name == task.name and value == task.arguments,
        }

    return Question("call", dialogue, judge, 160)


def _talk(rng: random.Random, *, thinking: bool) -> Question:
    asked, _, _ = talk.turn(rng)

    def judge(answer: Answer) -> dict[str, bool]:
        return {
            "chat ends by itself, without repetition": answer.finished and not repeats(answer.text)
        }

    return Question("talk", _ask(asked, thinking=thinking), judge, 120)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _fits(value: object, schema: object) -> bool:
    assert isinstance(schema, dict)
    return value is not None and jsonschema.Draft202012Validator(schema).is_valid(value)
