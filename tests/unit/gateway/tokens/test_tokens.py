"""Text to ids and back, as generation would have them."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from diptych.gateway.errors import HttpError
from diptych.gateway.policy import Policy
from diptych.gateway.tenancy.book import MemoryBook
from diptych.gateway.tenancy.keys import ANONYMOUS, Scope
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.tokens.converter import Converter
from diptych.text.markers import Marker

EOS = Marker.EOS
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}},
}
HELLO = [{"role": "user", "content": "Hello <｜User｜> é🦄"}]


async def tokenize(site: Any, path: str = "/tokenize", **body: Any) -> httpx.Response:
    reply: httpx.Response = await site.http.post(path, json=body)
    return reply


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_a_text_has_the_ids_of_a_completion(serve: Any, path: str) -> None:
    site = serve("x", EOS)
    for fields in ({}, {"add_special_tokens": False}):
        body = (await tokenize(site, path, prompt="Hi<｜User｜> é🦄", **fields)).json()
        wish = {"model": "tiny", "prompt": "Hi<｜User｜> é🦄", **fields}
        await site.http.post("/v1/completions", json=wish)
        assert tuple(body["tokens"]) == site.hops.generations[-2].prompt
        assert body["count"] == len(body["tokens"])
        assert (body["max_model_len"], body["token_strs"]) == (512, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"thinking": {"type": "disabled"}},
        {"reasoning_effort": "max"},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required", "thinking": {"type": "disabled"}},
        {"response_format": {"type": "json_object"}},
        {"messages": [*HELLO, {"role": "assistant", "content": "one", "prefix": True}]},
    ],
    ids=str,
)
async def test_a_conversation_has_the_ids_of_a_chat(serve: Any, fields: Any) -> None:
    site = serve("x", EOS)
    site.fleet = replace(site.fleet, max_model_len=4096)
    wish = {"model": "tiny", "messages": HELLO, **fields}
    reply = await site.http.post("/v1/chat/completions", json=wish)
    assert reply.status_code == 200, reply.text
    body = (await tokenize(site, **wish)).json()
    assert tuple(body["tokens"]) == site.hops.generations[0].prompt
    assert body["count"] == reply.json()["usage"]["prompt_tokens"]
    del wish["model"]
    assert (await tokenize(site, **wish)).json() == body


async def test_a_conversation_may_end_with_its_last_message(serve: Any) -> None:
    site = serve("x", EOS)
    whole = (await tokenize(site, messages=HELLO)).json()["tokens"]
    bare = (await tokenize(site, messages=HELLO, add_generation_prompt=False)).json()["tokens"]
    header = site.served.tokenizer.encode([Marker.ASSISTANT, Marker.THINK])
    assert whole == [*bare, *header]


async def test_tokens_are_spelled_if_asked_for(serve: Any) -> None:
    site = serve("x", EOS)
    body = (await tokenize(site, prompt="a 🦄", return_token_strs=True)).json()
    strings = body["token_strs"]
    assert len(strings) == body["count"]
    assert strings[0] == Marker.BOS.value
    assert "\\xf0\\x9f" in "".join(strings)


@pytest.mark.parametrize("text", ["", "Hello", "a<｜User｜>b</think>", "é 🦄\n", "x" * 9000])
async def test_text_comes_back_from_its_ids(serve: Any, text: str) -> None:
    site = serve("x", EOS)
    site.fleet = None
    ids = (await tokenize(site, prompt=text, add_special_tokens=False)).json()["tokens"]
    for path in ("/detokenize", "/v1/detokenize"):
        assert (await tokenize(site, path, tokens=ids)).json() == {"prompt": text}


async def test_half_a_character_is_not_lost_silently(serve: Any) -> None:
    site = serve("x", EOS)
    ids = site.served.tokenizer.encode(["🦄"])[:-1]
    assert (await tokenize(site, "/detokenize", tokens=ids)).json() == {"prompt": "\ufffd"}


@pytest.mark.parametrize("wrong", [-1, 960, 2**31, 2**63, 10**30])
async def test_t108_ids_out_of_range_are_refused(serve: Any, wrong: int) -> None:
    body = b'{"tokens": [5, %d]}' % wrong
    site = serve("x", EOS)
    reply = await site.http.post("/detokenize", content=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")
    if wrong < 2**63:
        assert reply.json()["error"]["message"].startswith("tokens[1]:")


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": 5}, "prompt", "invalid_type"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt", "conflicting_parameters"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs", "invalid_type"),
        ("/tokenize", {"messages": []}, "messages", "invalid_messages"),
        (
            "/tokenize",
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "invalid_value",
        ),
        ("/tokenize", {"prompt": "word " * 9000}, "prompt", "context_length_exceeded"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": "a"}, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": [True]}, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": [1.5]}, "tokens", "invalid_type"),
    ],
    ids=str,
)
async def test_a_wrong_body_is_refused_by_name(
    serve: Any, path: str, body: Any, param: str, code: str
) -> None:
    reply = await tokenize(serve("x", EOS), path, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)


async def test_another_model_is_not_found(serve: Any) -> None:
    site = serve("x", EOS)
    for path, body in (
        ("/tokenize", {"prompt": "a"}),
        ("/tokenize", {"messages": HELLO}),
        ("/detokenize", {"tokens": [5]}),
    ):
        reply = await tokenize(site, path, model="other", **body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


async def test_t94_many_at_once_borrow_nothing_from_each_other(serve: Any) -> None:
    site = serve("x", EOS)
    texts = [f"{number} " * (200 if number % 2 else 2500) for number in range(24)]
    site.fleet = None  # so that all of them fit
    replies = await asyncio.gather(*(tokenize(site, prompt=text) for text in texts))
    for text, reply in zip(texts, replies, strict=True):
        assert tuple(reply.json()["tokens"]) == site.served.tokenizer.encode([Marker.BOS, text])


async def test_t93_the_loop_goes_on_while_a_long_text_is_tokenised(serve: Any) -> None:
    site = serve("x", EOS)
    site.fleet = None
    asking = asyncio.create_task(tokenize(site, prompt="word " * 100_000))
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await asking).status_code == 200
    assert turns > 20


async def test_a_gateway_that_leaves_takes_nothing_new(serve: Any) -> None:
    site = serve("x", EOS)
    await site.traffic.drain(1.0)
    assert (await tokenize(site, prompt="a")).status_code == 503


async def test_a_prompt_is_shown_where_that_is_allowed(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(allow_render=True))
    body = {"model": "tiny", "messages": HELLO}
    await site.http.post("/v1/chat/completions", json=body)
    reply = await site.http.post("/v1/chat/completions/render", json=body)
    shown = reply.json()
    assert tuple(shown["token_ids"]) == site.hops.generations[0].prompt
    assert shown["prompt"] == "".join(part["text"] for part in shown["segments"])
    assert shown["prompt"].startswith("<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort")
    said = {part["type"] for part in shown["segments"] if "<｜User｜>" in part["text"]}
    assert said == {"special", "text"}  # the marker, and what the user wrote


async def test_prompts_are_not_shown_unless_the_operator_says_so(serve: Any) -> None:
    body = {"model": "tiny", "messages": HELLO}
    reply = await serve("x", EOS).http.post("/v1/chat/completions/render", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "not_implemented")


async def test_a_key_without_the_scope_sees_no_prompt(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(allow_render=True))
    caller = type(ANONYMOUS)("someone", ANONYMOUS.tenant, frozenset({Scope.INFERENCE}))
    visit = Visit(caller, MemoryBook(), "req_1", "/v1/chat/completions/render")
    with pytest.raises(HttpError) as caught:
        await Converter(site.served).render({"model": "tiny", "messages": HELLO}, visit)
    assert (caught.value.http_status, caught.value.code) == (403, "insufficient_permissions")
