"""Tool calls: tools of many families under many names, and the questions they answer."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.text.chat import Message
from diptych.text.tools import Tool, ToolCall
from train_tiny.dialogue import Dialogue, assistant, result, system, user
from train_tiny.sources import talk
from train_tiny.sources.families import FAMILIES, Family, invented
from train_tiny.sources.style import SYSTEMS, effort, politely

Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class Made:
    """A tool of a family, under one choice of names."""

    family: Family
    tool: Tool
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A question, the call that answers it, what the tool says, and the answer."""

    question: str
    name: str
    arguments: Values
    result: object
    answer: str


def make_tool(rng: random.Random, family: Family) -> Made:
    """Names, description and schema of one tool."""
    keys = tuple(rng.choice(slot.names) for slot in family.slots)
    if len(set(keys)) < len(keys):
        keys = tuple(slot.names[0] for slot in family.slots)
    described = rng.random() < 0.7
    properties: dict[str, object] = {}
    for key, slot in zip(keys, family.slots, strict=True):
        stated: dict[str, object] = {"type": slot.kind}
        if described:
            stated["description"] = slot.about
        properties[key] = stated
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(keys[: family.required]),
    }
    return Made(family, Tool(rng.choice(family.names), rng.choice(family.about), parameters), keys)


def make_task(rng: random.Random, made: Made) -> Task:
    """A question for a tool."""
    family = made.family
    values = [slot.draw(rng) for slot in family.slots]
    longer = bool(family.longer) and rng.random() < 0.35
    used = len(values) if longer else family.required
    told = [str(v).lower() if isinstance(v, bool) else v for v in values]
    question = rng.choice(family.longer if longer else family.utterances).format(*told)
    arguments: Values = dict(zip(made.keys[:used], values[:used], strict=True))
    answered, answer = family.reply(rng, values)
    return Task(question, made.tool.name, arguments, answered, answer)


def make_tools(rng: random.Random, count: int) -> list[Made]:
    """Different tools with different names."""
    found: dict[str, Made] = {}
    for family in rng.sample(FAMILIES, count):
        if rng.random() < 0.35:
            family = invented(rng)
        made = make_tool(rng, family)
        found.setdefault(made.tool.name, made)
    return list(found.values())


def draw(rng: random.Random) -> Dialogue:
    """A few turns with a few tools; some turns need none."""
    tools = make_tools(rng, rng.choice((1, 1, 2, 3, 4)))
    messages: list[Message] = [system(rng.choice(SYSTEMS))] if rng.random() < 0.3 else []
    for turn in range(rng.choice((1, 2, 3, 4, 6))):
        if rng.random() < 0.15:
            question, reasoning, answer = talk.turn(rng)
            messages += [user(question), assistant(answer, "No tool is needed. " + reasoning)]
            continue
        chosen = rng.choice(tools)
        tasks = [make_task(rng, chosen)]
        if rng.random() < 0.12:
            tasks.append(make_task(rng, rng.choice(tools)))
        messages += _called(rng, tasks, f"{turn}")
    if rng.random() < 0.25 and len(messages) > 2 and _ends_with_answer(messages):
        messages = messages[: _last_call(messages) + 1]
    return Dialogue(tuple(messages), effort(rng), tools=tuple(made.tool for made in tools))


def asked(rng: random.Random) -> Dialogue:
    """One question that one of a few tools answers; it ends with the call."""
    tools = make_tools(rng, rng.randint(1, 4))
    task = make_task(rng, rng.choice(tools))
    call = (task.name, task.arguments)
    return given(politely(rng, task.question), [made.tool for made in tools], [call], rng)


def given(
    question: str, tools: Sequence[Tool], calls: Sequence[tuple[str, Values]], rng: random.Random
) -> Dialogue:
    """One question answered by known calls."""
    made = [
        ToolCall(f"call_{i}", name, json.dumps(values, ensure_ascii=False))
        for i, (name, values) in enumerate(calls)
    ]
    return Dialogue(
        (user(question), assistant("", _plan(calls), made)), effort(rng), tools=tuple(tools)
    )


def _plan(calls: Sequence[tuple[str, Values]]) -> str:
    told = [
        f"{name} with " + (", ".join(f"{k} = {v}" for k, v in values.items()) or "nothing")
        for name, values in calls
    ]
    return "I need the tool " + ", and ".join(told) + "."


def _called(rng: random.Random, tasks: Sequence[Task], tag: str) -> list[Message]:
    calls = [(t.name, t.arguments) for t in tasks]
    made = [
        ToolCall(f"call_{tag}_{i}", name, json.dumps(values, ensure_ascii=False))
        for i, (name, values) in enumerate(calls)
    ]
    question = (
        politely(rng, tasks[0].question) if len(tasks) == 1 else " ".join(t.question for t in tasks)
    )
    messages = [user(question), assistant("", _plan(calls), made)]
    for call, task in zip(made, tasks, strict=True):
        text = task.result if isinstance(task.result, str) else json.dumps(task.result)
        messages.append(result(text, call.id))
    answer = " ".join(t.answer for t in tasks)
    return [*messages, assistant(answer, "The tool has answered. I will tell the user.")]


def _ends_with_answer(messages: Sequence[Message]) -> bool:
    return any(m.calls for m in messages)


def _last_call(messages: Sequence[Message]) -> int:
    return max(i for i, m in enumerate(messages) if m.calls)
