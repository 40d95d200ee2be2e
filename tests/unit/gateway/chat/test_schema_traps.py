"""Mistakes that others made in public, by the number they have in our list: those of schemas."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from diptych.core.constraint import Kind
from diptych.core.phases import Finish
from diptych.testing.clock import settle
from diptych.text.markers import Marker

END, EOS = Marker.END_THINK, Marker.EOS
STEPS = [1, 2, 3, 5, 1000]
ON = {"thinking": {"type": "enabled"}}
SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["b", "a"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
DOCUMENT = '{"b": 1, "a": "größe/"}'
LEGACY = [
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
    "guided_whitespace_pattern",
]  # fmt: skip


def roomy(site: Any) -> Any:
    site.fleet = replace(site.fleet, max_model_len=4096)
    return site


def texts(events: list[Any], field: str) -> str:
    deltas = [event["choices"][0]["delta"] for event in events if event != "[DONE]"]
    return "".join(delta.get(field) or "" for delta in deltas)


@pytest.mark.parametrize("step", STEPS)
async def test_t60_t61_g14_thinking_is_free_and_the_document_is_content(
    serve: Any, step: int
) -> None:
    """What looks like a document while it thinks is thinking."""
    thought = f"Perhaps {DOCUMENT}?"
    site = roomy(serve(thought, END, "\n\n", DOCUMENT, EOS, tokens_a_step=step))
    message = (await site.ask(response_format=FORM, **ON)).json()["choices"][0]["message"]
    expected = {"role": "assistant", "content": DOCUMENT, "reasoning_content": thought}
    assert message == expected
    events = await site.events(response_format=FORM, **ON)
    assert texts(events, "content") == DOCUMENT
    assert texts(events, "reasoning_content") == thought
    generation = site.hops.generations[-1]
    assert generation.constraint.kind is Kind.JSON_SCHEMA
    assert generation.constraint_after == END.value


@pytest.mark.parametrize("name", LEGACY)
async def test_t65_a_constraint_of_old_is_refused_with_its_new_name(serve: Any, name: str) -> None:
    site = serve("x", EOS)
    reply = await site.ask(**{name: {"type": "object"}})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (
        400,
        "unsupported_parameter",
        name,
    )
    assert "structured_outputs" in error["message"] or name == "guided_decoding_backend"
    assert site.hops.generations == []


@pytest.mark.parametrize(
    "form",
    [
        {},
        [],
        "json",
        7,
        {"type": None},
        {"type": "json"},
        {"type": ["json_schema"]},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": [1]}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": []}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": "yes"}},
        {"type": "regex"},
        {"type": "regex", "regex": 7},
        {"type": "grammar", "grammar": {}},
        {"type": "structural_tag"},
        {"type": "structural_tag", "structures": 7, "triggers": 7},
    ],
    ids=json.dumps,
)
async def test_t67_what_is_no_response_format_is_refused(serve: Any, form: Any) -> None:
    reply = await serve("x", EOS).ask(response_format=form)
    error = reply.json()["error"]
    assert reply.status_code == 400, reply.text
    assert error["param"].startswith("response_format")


@pytest.mark.parametrize("step", STEPS)
async def test_t71_a_document_that_is_cut_is_not_repaired(serve: Any, step: int) -> None:
    site = roomy(serve(DOCUMENT, EOS, tokens_a_step=step))
    for limit in (1, 5, 9):
        choice = (await site.ask(response_format=FORM, max_tokens=limit)).json()["choices"][0]
        content = choice["message"]["content"]
        assert choice["finish_reason"] == "length"
        assert content and DOCUMENT.startswith(content) and content != DOCUMENT
        events = await site.events(response_format=FORM, max_tokens=limit)
        assert texts(events, "content") == content


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "number"}, {"type": "array"}, {"type": "array", "items": {"type": "integer"}}],
    ids=json.dumps,
)
async def test_g13_a_document_without_an_end_ends_with_the_length(serve: Any, schema: Any) -> None:
    site = roomy(serve("[" + "1, " * 200, finish=Finish.LENGTH))
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = (await site.ask(response_format=form, max_tokens=20)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert site.hops.generations[-1].max_new == 20
    bound = {"type": "string", "pattern": "^a+$", "maxLength": 2}
    refused = await site.ask(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": bound,
    }})  # fmt: skip
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_schema")


BODIES: list[tuple[bytes, str | None]] = [
    (b'{"model": ', None),
    (b"", None),
    (b"null", None),
    (b'{"model": 7, "messages": [], "input": "x", "max_tokens": 1}', "model"),
]


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize(("content", "param"), BODIES)
async def test_g15_a_malformed_body_is_a_400(
    serve: Any, path: str, content: bytes, param: str | None
) -> None:
    site = serve("x", EOS)
    reply = await site.http.post(f"/v1/{path}", content=content)
    assert reply.status_code == 400
    error = reply.json()["error"]
    if path != "messages":
        assert (
            error["param"] in (param, "messages", "prompt") if param else error["param"] is None
        ), error
    elif param:
        assert "model" in error["message"] or "messages" in error["message"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("chat/completions", "messages"),
        ("completions", "prompt"),
        ("responses", "input"),
        ("messages", "messages"),
    ],
)
@pytest.mark.parametrize("value", [None, 7, True, {}, [7], [[None]], [{"role": 7}], [{}]])
async def test_g15_a_field_of_the_wrong_kind_is_named(
    serve: Any, path: str, field: str, value: Any
) -> None:
    site = serve("x", EOS)
    body = {"model": "tiny", "max_tokens": 1, field: value}
    reply = await site.http.post(f"/v1/{path}", json=body)
    if (path, value) == ("completions", [7]):  # ids of tokens
        assert reply.status_code == 200
        return
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert field in (error["message"] if path == "messages" else error["param"])


async def test_g18_a_busy_tokenizer_freezes_nothing(serve: Any) -> None:
    """It is loaded before the first request; twenty long ones wait for it, and others do not."""
    site = serve("x", EOS)
    site.fleet = replace(site.fleet, max_model_len=1 << 20)
    text = "The river was seven stones wide. " * 3_000
    asked = [
        asyncio.create_task(site.ask(messages=[{"role": "user", "content": text}], max_tokens=1))
        for _ in range(20)
    ]
    await settle(lambda: site.traffic.num_running == 20)
    began_s = time.monotonic()
    assert (await site.http.get("/health")).status_code == 200
    waited_s = time.monotonic() - began_s
    assert not any(each.done() for each in asked)
    assert waited_s < 0.5
    assert {reply.status_code for reply in await asyncio.gather(*asked)} == {200}
