"""Whatever stands in a body, the answer is one that is documented, and no log repeats it."""

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from diptych.gateway.policy import Policy
from diptych.text.markers import Marker
from diptych.text.tools import ToolCall, invocations

SECRET = "s3cret"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "minLength": 1, "description": SECRET},
        "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 3},
        "d": {"enum": [1, "x", None]},
    },
    "required": ["a"],
    "$defs": {"c": {"type": "object", "properties": {}}},
}
FUNCTION = {"name": "f", "description": SECRET, "parameters": SCHEMA, "strict": True}
TEXT = {"type": "text", "text": SECRET}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": SECRET, "name": "n"},
        {"role": "user", "content": [TEXT]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": SECRET,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": SECRET},
        {"role": "user", "content": SECRET},
    ],
    "max_tokens": 5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 2,
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "thinking": {"type": "enabled"},
    "reasoning_effort": "high",
    "chat_template_kwargs": {"thinking": True},
    "bad_words": [SECRET],
    "prompt_logprobs": 1,
}
COMPLETION: dict[str, Any] = {
    "prompt": [SECRET, "b"],
    "max_tokens": 3,
    "suffix": SECRET,
    "best_of": 1,
    "logprobs": 2,
    "echo": True,
    "stream": True,
    "stop": "x",
    "structured_outputs": {"choice": [SECRET, "b"]},
    "return_token_ids": True,
}
RESPONSE: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": SECRET}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": SECRET}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": SECRET}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": SECRET},
    ],
    "instructions": SECRET,
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", **FUNCTION}]},
        {"type": "web_search"},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    },
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": SECRET},
    "max_output_tokens": 5,
    "stream": True,
}
MESSAGE: dict[str, Any] = {
    "max_tokens": 5,
    "system": [TEXT],
    "messages": [
        {"role": "user", "content": [TEXT]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": SECRET, "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": SECRET}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}],
        },
    ],
    "stop_sequences": ["a"],
    "stream": True,
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "tools": [{"name": "f", "description": SECRET, "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f"},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": MESSAGE,
    "/tokenize": CHAT,
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/chat/completions/render": CHAT,
}
KEPT = {"messages", "prompt", "input", "max_tokens", "tokens"}
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, 2**63, 2**64 - 1, "", "x", "\0", "😀", SECRET * 900, "function",
    "object", "none", "@list", "user", "#", [], [[]], {}, {"": ""}, [None], [1, 2], ["a", 1], [{}],
    TEXT, {"type": "function"}, {"$ref": "#"}, {"type": ["object", "null"]}, {"type": "string"},
    {"enum": []}, {"not": {}}, {"a": {"b": [{"c": None}]}}, "(", "a{1000000}", "root ::= root", "1",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, each in inner:
        yield (*path, step)
        yield from places(each, (*path, step))


def damaged(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """With some of its fields, and one to three of its values replaced, doubled or left out."""
    body = copy.deepcopy({k: v for k, v in body.items() if k in KEPT or chance.random() < 0.4})
    for _ in range(chance.randint(0, 3)):
        *path, last = chance.choice(list(places(body)) or [("x",)])
        inner: Any = body
        for step in path:
            inner = inner[step]
        if chance.random() < 0.7 or last not in inner:
            inner[last] = copy.deepcopy(chance.choice(ODD))
        elif isinstance(inner, list):
            inner.append(copy.deepcopy(inner[last]))
        else:
            del inner[last]
    return body


@pytest.mark.parametrize("path", BODIES)
async def test_t67_t90_t91_no_damage_to_a_body_is_more_than_a_400(
    serve: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(path)
    called = invocations([ToolCall("", "f", '{"a": "x"}')])
    site = serve("Hm", Marker.END_THINK, "y", *called, Marker.EOS, policy=Policy(allow_render=True))
    site.fleet = replace(site.fleet, max_model_len=4096)
    statuses = set()
    with caplog.at_level("DEBUG"):
        for _ in range(250):
            body = {"model": "tiny", **damaged(BODIES[path], chance)}
            reply = await site.http.post(path, json=body)
            statuses.add(reply.status_code)
            assert reply.status_code in (200, 400, 404, 501), body
            assert reply.status_code == 200 or SECRET not in reply.text
            assert b"internal_error" not in reply.content
            assert b"api_error" not in reply.content or reply.status_code == 501
            site.hops.generations.clear()
    assert {200, 400} <= statuses
    assert SECRET not in caplog.text
