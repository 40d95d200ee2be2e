"""What a request wants of sampling and of its answer reaches the engine as it should."""

import asyncio
import time
from typing import Any

import pytest

from diptych.core.constraint import Constraint, Kind
from diptych.text.markers import Marker

EOS = Marker.EOS
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


async def test_sampling_wishes_reach_the_engine(serve: Any) -> None:
    site = serve("a", EOS)
    await site.ask(
        logit_bias={"7": -1, "9": 2.5},
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        presence_penalty=-0.2,
        min_tokens=2,
        allowed_token_ids=[5, 6],
        bad_words=["word"],
        max_tokens=5,
    )
    sampling = site.hops.generations[0].sampling
    assert sampling.logit_bias == ((7, -1.0), (9, 2.5))
    assert sampling.repetition_penalty == 1.2
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, -0.2)
    assert (sampling.min_tokens, sampling.allowed_token_ids) == (2, (5, 6))
    encode = site.served.tokenizer.encode
    assert sampling.bad_words == (encode(["word"]), encode([" word"]))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"logit_bias": {"960": 1}}, "invalid_value", "logit_bias"),
        ({"allowed_token_ids": [3, 960]}, "invalid_value", "allowed_token_ids"),
        ({"min_tokens": 4, "max_tokens": 3}, "conflicting_parameters", "min_tokens"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused(
    serve: Any, fields: dict[str, Any], code: str, param: str
) -> None:
    site = serve("a", EOS)
    reply = await site.ask(**fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert not site.hops.generations


async def test_every_choice_has_the_constraint(serve: Any) -> None:
    site = serve('{"a": 1}', EOS)
    await site.ask(response_format=FORMAT, n=2)
    (first, second) = {g.key.request_id: g for g in site.hops.generations}.values()
    source = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    assert first.constraint == second.constraint == Constraint(Kind.JSON_SCHEMA, source)
    assert first.constraint.param == "response_format.json_schema.schema"
    assert first.constraint_after == ""
    prompt = b"".join(map(site.served.tokenizer.spelling, first.prompt)).decode()
    assert "## Response Format:" in prompt
    assert '{"type": "object", "properties": {"a": {"type": "integer"}}' in prompt


async def test_a_thinking_model_is_bound_after_its_thoughts(serve: Any) -> None:
    site = serve("x", Marker.END_THINK, "a", EOS)
    await site.ask(regex="a+", thinking={"type": "enabled"})
    await site.ask(thinking={"type": "enabled"})
    bound, *_, free = site.hops.generations
    assert (bound.constraint_after, free.constraint_after) == ("</think>", "")
    assert free.constraint is None


async def test_stop_strings_wait_for_min_tokens(serve: Any) -> None:
    site = serve("abcdefgh", EOS)
    early = (await site.ask(stop="c")).json()["choices"][0]
    late = (await site.ask(stop="c", min_tokens=9, max_tokens=20)).json()["choices"][0]
    assert (early["message"]["content"], late["message"]["content"]) == ("ab", "abcdefgh")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE = {
    "deep": nested(200),
    "cyclic": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "external": {"$ref": "https://example.com/schema.json"},
    "many values": {"enum": [f"value {i}" for i in range(10_001)]},
    "many names": {
        "type": "object",
        "properties": {f"property_{i}": {"type": "string"} for i in range(5_001)},
    },
    "huge numbers of items": {"type": "array", "minItems": 10**9, "items": {"type": "string"}},
    "an exploding pattern": {"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"},
    "an ignored keyword": {"type": "array", "uniqueItems": True},
}


async def test_hostile_schemas_are_refused_soon_while_others_are_served(serve: Any) -> None:
    site = serve("Hello", " you", EOS)
    slowest_s, done = 0.0, asyncio.Event()

    async def hostile(schema: dict[str, Any]) -> tuple[int, str]:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        reply = await site.ask(response_format=form)
        return reply.status_code, reply.json()["error"]["code"]

    async def others() -> None:
        nonlocal slowest_s
        while not done.is_set():
            began_s = time.monotonic()
            assert (await site.ask()).status_code == 200
            slowest_s = max(slowest_s, time.monotonic() - began_s)

    began_s = time.monotonic()
    flow = asyncio.create_task(others())
    found = await asyncio.gather(*map(hostile, HOSTILE.values()))
    spent_s = time.monotonic() - began_s
    done.set()
    await flow
    expected = dict.fromkeys(HOSTILE, (400, "invalid_schema")) | {"deep": (400, "invalid_json")}
    assert dict(zip(HOSTILE, found, strict=True)) == expected
    assert spent_s < 4
    assert 0 < slowest_s < 1
    assert not any(generation.constraint for generation in site.hops.generations)
