"""Outputs bound to a grammar, through the whole engine: valid, whole, and the same everywhere.

The model is noise, so every token is a surprise, and what keeps the output in order is the grammar.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diptych.core.constraint import Constraint
from diptych.core.errors import CANCELLED, BadRequest, Refused
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Budget, Sampling
from diptych.engine.build import build_engine
from diptych.engine.grammar import replay
from diptych.engine.grammar.backends import make_backend
from diptych.engine.loop import Engine
from diptych.engine.options import Options
from diptych.model import noise
from diptych.text import tokenizer
from diptych.text.constraints import build, from_structured_outputs
from diptych.text.constraints.vocabulary import read_vocabulary
from diptych.text.markers import Marker
from diptych.text.tokenizer import Tokenizer

from .conftest import Watched, watched
from .test_runner import move

MAX_NEW = 128
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 99},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": -5, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", None, 7.5]}, "maxItems": 3},
        "ok": {"type": "boolean"},
        "day": {"type": "string", "pattern": "^\\d{4}-(0[1-9]|1[0-2])$"},
    },
    "required": ["name", "age", "tags", "ok", "day"],
    "additionalProperties": False,
}
VARIANTS = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": "boolean"}},
            "required": ["kind", f"v{i}"],
            "additionalProperties": False,
        }
        for i in range(40)
    ]
}
GRID = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "minItems": 1,
        "maxItems": 4,
    },
}
LETTERS = "[α-ωა-ჰ一-龥]{2,5}-\\p{Lu}?"
PATTERN = re.compile("[α-ωა-ჰ一-龥]{2,5}-[^\\W\\d_]?")
EXPRESSION = 'root ::= term ("+" term){0,6}\nterm ::= [0-9]{1,3} | "(" [a-c] ")"\n'
TERM = "(\\d{1,3}|\\([a-c]\\))"
CHOICES = ["yes", "no", "perhaps later", "nein, ü"]


def schema_case(schema: Any) -> tuple[dict[str, Any], Callable[[str], bool]]:
    def is_valid(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema)
        return True

    return {"json": schema, "disable_any_whitespace": True}, is_valid


ENUM = {"enum": [f"value {i}" for i in range(2000)]}
CASES: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "record": schema_case(RECORD),
    "variants": schema_case(VARIANTS),
    "grid": schema_case(GRID),
    "enum": schema_case(ENUM),
    "choice": ({"choice": CHOICES}, lambda text: text in CHOICES),
    "letters": ({"regex": LETTERS}, PATTERN.fullmatch),
    "expression": ({"grammar": EXPRESSION}, re.compile(f"{TERM}(\\+{TERM}){{0,6}}").fullmatch),
    "list": schema_case({"$ref": "#/$defs/node", "$defs": {"node": NODE}}),
    "any object": ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
}
ENDLESS = {"list", "any object"}  # nothing in the grammar says that they must end


def constraint_of(case: str) -> Constraint:
    found = from_structured_outputs(CASES[case][0])
    assert found is not None
    return found


@dataclass(frozen=True)
class Output:
    """What became of a generation."""

    tokens: tuple[int, ...]
    finish: Finish | None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise.write(tmp_path_factory.mktemp("noise") / "checkpoint")


@pytest.fixture(scope="module")
def model_tokens(checkpoint: Path) -> Tokenizer:
    return tokenizer.load(checkpoint)


@asynccontextmanager
async def noise_engine(checkpoint: Path, **sizes: int) -> AsyncIterator[Watched]:
    def make(**where: Any) -> Engine:
        options = Options(numerics="exact", block_tokens=8, max_model_len=256, **sizes)
        return build_engine(checkpoint, model_name="noise", options=options, **where)

    async with watched(make) as it:
        yield it


def generations_of(count: int, rng: random.Random) -> list[Generation]:
    """Some of each case in turn, seeded, a few of them greedy."""
    names = [list(CASES)[i % len(CASES)] for i in range(count)]
    return [
        Generation(
            Key(f"{i}/{case}", 1),
            tuple(rng.randrange(3, 900) for _ in range(rng.choice([1, 6, 30]))),
            Sampling(
                temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
                top_p=rng.choice([1.0, 0.95]),
                seed=rng.getrandbits(64),
            ),
            MAX_NEW,
            constraint=constraint_of(case),
        )
        for i, case in enumerate(names)
    ]


async def run(it: Watched, generations: list[Generation]) -> dict[str, Output]:
    names = [generation.key.request_id for generation in generations]
    await asyncio.gather(*(it.engine.submit(g, hold=False) for g in generations))
    for name in names:
        await it.finished(name)
    return {name: Output(it.tokens(name), it.rows(name)[-1].finish) for name in names}


def judge(outputs: dict[str, Output], checkpoint: Path, model_tokens: Tokenizer) -> None:
    """All that stopped are valid, nearly all that can stop did, the rest are beginnings."""
    vocabulary = read_vocabulary((checkpoint / "tokenizer.json").read_bytes(), 960, [1])
    backend = make_backend("xgrammar", vocabulary)
    compiled = {case: backend.compile(build(constraint_of(case)), "") for case in CASES}
    stopped, bounded = 0, 0
    for name, output in outputs.items():
        case = name.partition("/")[2]
        text = b"".join(map(model_tokens.token_bytes, output.tokens)).decode(errors="replace")
        bounded += case not in ENDLESS
        if output.finish is Finish.STOP:
            stopped += case not in ENDLESS
            assert output.tokens[-1] == 1
            assert CASES[case][1](text), (name, text)
        else:
            assert output.finish is Finish.LENGTH, (name, output)
            assert replay(compiled[case].matcher(), output.tokens), (name, text)
    assert stopped >= 0.95 * bounded, (stopped, bounded)


@pytest.mark.timeout(300)
async def test_outputs_are_valid_and_the_same_under_preemption_and_when_split(
    checkpoint: Path, model_tokens: Tokenizer, rng: random.Random
) -> None:
    generations = generations_of(108, rng)
    async with noise_engine(checkpoint, max_num_seqs=64) as it:
        outputs = await run(it, generations)
    judge(outputs, checkpoint, model_tokens)

    some = generations[::6]
    expected = {g.key.request_id: outputs[g.key.request_id] for g in some}
    for how in ({"swap_bytes": 0}, {"async_stepping": True}):
        async with noise_engine(checkpoint, max_num_seqs=24, num_blocks=34, **how) as it:
            for generation in some:  # compiled first, so that all of them want pages at once
                await it.engine.prepare(generation)
            assert await run(it, some) == expected
            assert it.engine.counts().preemptions_total > 3

    prefill = noise_engine(checkpoint)
    async with prefill as source, noise_engine(checkpoint, max_num_seqs=32) as target:

        async def hand_over(generation: Generation) -> Output:
            name = generation.key.request_id
            await source.engine.submit(generation, hold=True)
            await source.until(lambda: source.rows(name))
            finish = source.rows(name)[-1].finish
            if finish is None:
                await target.engine.adopt(await move(source, target, generation))
                await target.finished(name)
                finish = target.rows(name)[-1].finish
            return Output(source.tokens(name) + target.tokens(name), finish)

        found = await asyncio.gather(*map(hand_over, some))
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_five_hundred_outputs_are_valid(
    checkpoint: Path, model_tokens: Tokenizer, rng: random.Random
) -> None:
    async with noise_engine(checkpoint, max_num_seqs=64, num_blocks=900) as it:
        outputs = await run(it, generations_of(504, rng))
    judge(outputs, checkpoint, model_tokens)


async def test_the_grammar_waits_until_the_thoughts_end(
    checkpoint: Path, model_tokens: Tokenizer, rng: random.Random
) -> None:
    opening = model_tokens.find(Marker.END_THINK)
    assert opening is not None
    generations = [
        replace(
            g,
            constraint_after=Marker.END_THINK.value,
            sampling=replace(g.sampling, temperature=1.0, logit_bias=((opening, 5.0),)),
        )
        for g in generations_of(18, rng)
    ]
    async with noise_engine(checkpoint) as it:
        outputs = await run(it, generations)
    answers, thoughts = {}, 0
    for name, output in outputs.items():
        if opening in output.tokens:
            end = output.tokens.index(opening)
            thoughts += end
            answers[name] = replace(output, tokens=output.tokens[end + 1 :])
        else:
            assert output.finish is Finish.LENGTH
    assert len(answers) > 12 and thoughts > 20
    judge({n: o for n, o in answers.items() if o.finish is Finish.STOP}, checkpoint, model_tokens)


async def test_a_budget_ends_the_thoughts_and_the_same_way_when_split_or_resumed(
    checkpoint: Path, model_tokens: Tokenizer, rng: random.Random
) -> None:
    end = model_tokens.find(Marker.END_THINK)
    assert end is not None
    budgets = [0, 1, 2, 7, 20]
    generations = [
        replace(
            g,
            key=Key(f"{budget}/{g.key.request_id}", 1),
            constraint_after=Marker.END_THINK.value,
            constraint=g.constraint if index % 2 else None,
            sampling=replace(
                g.sampling, thinking=Budget(budget, (end,)), logit_bias=((end, -100.0),)
            ),
        )
        for index, (budget, g) in enumerate(zip(budgets, generations_of(5, rng), strict=True))
    ]
    async with noise_engine(checkpoint) as it:
        outputs = await run(it, generations)
        for generation in generations:
            output = outputs[generation.key.request_id].tokens
            thinking = generation.sampling.thinking
            assert thinking is not None and output.index(end) == thinking.num_tokens
        resumed = [
            replace(g, key=Key(f"{g.key.request_id}/{n}", 1), forced=whole[:n])
            for g in generations
            for whole in [outputs[g.key.request_id].tokens]
            for n in (1, 7, 8)
            if n < len(whole)
        ]
        found = await run(it, resumed)
    for generation in resumed:
        name = generation.key.request_id
        whole = outputs[name.rpartition("/")[0]]
        assert found[name] == replace(whole, tokens=whole.tokens[len(generation.forced) :])

    first = generations[0]
    async with noise_engine(checkpoint) as source, noise_engine(checkpoint) as target:
        await source.engine.submit(first, hold=True)
        await source.until(lambda: source.rows(first.key.request_id))
        await target.engine.adopt(await move(source, target, first))
        await target.finished(first.key.request_id)
    name = first.key.request_id
    assert source.tokens(name) == (end,)
    assert source.tokens(name) + target.tokens(name) == outputs[name].tokens


async def test_forced_output_is_followed_and_what_breaks_the_grammar_fails_alone(
    checkpoint: Path, rng: random.Random
) -> None:
    whole = generations_of(2, rng)[0]
    async with noise_engine(checkpoint) as it:
        tokens = (await run(it, [whole]))[whole.key.request_id].tokens
        resumed = replace(whole, key=Key("resumed", 1), forced=tokens[:9])
        wrong = replace(whole, key=Key("wrong", 1), forced=(50, 50, 50))
        free = replace(whole, key=Key("free", 1), constraint=None, max_new=5)
        outputs = await run(it, [resumed, wrong, free])
    assert outputs["resumed"].tokens == tokens[9:]
    assert outputs["wrong"] == Output((), Finish.ERROR)
    assert outputs["free"].finish is Finish.LENGTH
    (row,) = it.rows("wrong")
    assert "the grammar does not allow token 50 at position" in row.message


async def test_a_constraint_that_nobody_can_enforce_is_refused_and_leaves_nothing(
    checkpoint: Path, rng: random.Random
) -> None:
    (good,) = generations_of(1, rng)
    hopeless = replace(
        good, key=Key("hopeless", 1), constraint=replace(constraint_of("letters"), source="(")
    )
    async with noise_engine(checkpoint) as it:
        with pytest.raises(BadRequest) as caught:
            await it.engine.submit(hopeless, hold=False)
        assert caught.value.code == "invalid_schema"
        with pytest.raises(BadRequest):
            await it.engine.prepare(hopeless)
        assert await it.engine.drop(hopeless.key) is False
        waiting = asyncio.create_task(it.engine.submit(good, hold=False))
        await asyncio.sleep(0)  # it asks first
        assert await it.engine.held(good.key) is None
        assert it.engine.counts().preparing == 1
        assert await it.engine.drop(good.key)
        with pytest.raises(Refused, match="given up") as gone:
            await waiting
        assert gone.value.code == CANCELLED
