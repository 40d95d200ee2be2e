"""Bodies that are long: read beside what else is served, and never longer than it takes."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest

from diptych.gateway.body import MAX_TEXT_BODY_BYTES
from diptych.text.markers import Marker

EOS = Marker.EOS
WRONG = 100_000
USER = {"role": "user", "content": "u"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "x"}] * WRONG}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "x"}] * WRONG}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": ""}] * WRONG}]}),
        (CHAT, {"messages": [USER], "tools": [{}] * WRONG}),
        (CHAT, {"messages": [USER], "logit_bias": {f"x{i}": 1 for i in range(WRONG)}}),
        (CHAT, {"messages": [USER], "stop": [""] * WRONG}),
        (TEXT, {"prompt": [[]] * WRONG}),
        (TEXT, {"prompt": [-1] * WRONG}),
        (RESPONSES, {"input": [{"type": "x"}] * WRONG}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "x"}] * WRONG}]}),
        (RESPONSES, {"input": "x", "tools": [{}] * WRONG}),
        (RESPONSES, {"input": "x", "include": ["x"] * WRONG}),
        (MESSAGES, {"messages": [{"role": "x"}] * WRONG}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "x"}] * WRONG}]}),
        (MESSAGES, {"messages": [USER], "tools": [{}] * WRONG}),
        ("/tokenize", {"messages": [{"role": "x"}] * WRONG}),
        ("/detokenize", {"tokens": [-1] * WRONG}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_t88_t91_what_is_wrong_is_found_once_however_often_it_is_wrong(
    serve: Any, path: str, fields: dict[str, Any]
) -> None:
    site = serve("x", EOS)
    body = orjson.dumps({"model": "tiny", "max_tokens": 1, **fields})
    began_s = time.process_time()
    reply = await site.http.post(path, content=body)
    assert time.process_time() - began_s < 1
    assert reply.status_code == 400 and len(reply.content) < 1500


@pytest.mark.parametrize(
    ("path", "name"), [(CHAT, "messages"), (RESPONSES, "input"), (MESSAGES, "messages")]
)
async def test_t93_the_loop_goes_on_while_many_messages_are_read(
    serve: Any, path: str, name: str
) -> None:
    site = serve("x", EOS)
    site.fleet = replace(site.fleet, max_model_len=1 << 20)
    turns = [USER, {"role": "assistant", "content": "a"}] * 10_000
    limit = {"max_output_tokens": 1} if path == RESPONSES else {"max_tokens": 1}
    body = orjson.dumps({"model": "tiny", **limit, name: [*turns, USER]})
    asked = asyncio.create_task(site.http.post(path, content=body))
    began_s = turn_s = time.monotonic()
    longest_s = 0.0
    while not asked.done():
        await asyncio.sleep(0.001)
        longest_s, turn_s = max(longest_s, time.monotonic() - turn_s), time.monotonic()
    assert asked.result().status_code == 200
    assert longest_s < 0.8 * (turn_s - began_s)  # in the loop it would be nearly all of it


async def test_bodies_without_images_are_shorter(serve: Any) -> None:
    site = serve("x", EOS)
    long = b'{"model":"tiny","junk":"' + b"x" * MAX_TEXT_BODY_BYTES + b'"}'
    for path in (TEXT, "/completions", "/beta/v1/completions", "/tokenize", "/v1/detokenize"):
        reply = await site.http.post(path, content=long)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    for path in (CHAT, RESPONSES, MESSAGES, "/v1/messages/count_tokens"):
        assert (await site.http.post(path, content=long)).status_code == 400
