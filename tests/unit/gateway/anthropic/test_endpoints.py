"""Paths of the Messages API: who answers, and in which envelope what is wrong is told."""

import asyncio
from typing import Any

import pytest

from diptych.gateway.policy import Policy, read_aliases
from diptych.gateway.stream import Patience
from diptych.text.markers import Marker

EOS = Marker.EOS
ANSWER = {"thinking": {"type": "disabled"}}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAA"
    "BQABpfZFQAAAAABJRU5ErkJggg=="
)
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def problem(reply: Any, status: int, kind: str) -> str:
    """The message of an error in Anthropic's envelope."""
    assert reply.status_code == status, reply.text
    said = reply.json()
    assert said.keys() == {"type", "error", "request_id"}
    assert (said["type"], said["error"]["type"]) == ("error", kind)
    assert said["error"].keys() == {"type", "message"}
    assert said["request_id"] == reply.headers["x-request-id"] == reply.headers["request-id"]
    message: str = said["error"]["message"]
    return message


@pytest.mark.parametrize("base", ["/v1", "/anthropic/v1"])
async def test_both_bases_answer_and_their_headers_change_nothing(client: Any, base: str) -> None:
    asked = client("Hi", EOS)
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "x-api-key": "any"}
    reply = await asked.site.http.post(
        f"{base}/messages", json=asked.body(**ANSWER), headers=headers
    )
    assert reply.json()["content"] == [{"type": "text", "text": "Hi"}]
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    reply = await asked.site.http.post(f"{base}/messages/count_tokens", json=asked.body(**ANSWER))
    assert reply.json() == {"input_tokens": len(asked.prompt)}


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("GET", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "/anthropic/v1/nowhere", 404, "not_found_error"),
        ("POST", "/anthropic", 404, "not_found_error"),
    ],
)
async def test_t92_routing_answers_in_anthropics_envelope(
    client: Any, method: str, path: str, status: int, kind: str
) -> None:
    problem(await client("x", EOS).site.http.request(method, path), status, kind)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_t92_a_body_that_is_none_is_told_in_anthropics_envelope(
    client: Any, path: str
) -> None:
    http = client("x", EOS).site.http
    kind = "invalid_request_error"
    problem(await http.post(path, content=b'{"model": '), 400, kind)
    problem(await http.post(path, content=b"[]"), 400, kind)
    reply = await http.post(path, content=b"{}", headers={"content-type": "text/plain"})
    problem(reply, 415, kind)
    reply = await http.post(path, content=b"{}", headers={"content-length": "999999999999"})
    problem(reply, 413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "kind", "said"),
    [
        ({"model": "x"}, 404, "not_found_error", "`x` does not exist"),
        ({"messages": []}, 400, "invalid_request_error", "messages: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]: documents are not supported",
        ),
    ],
)
async def test_t92_what_is_wrong_is_told_in_anthropics_envelope(
    client: Any, path: str, stream: bool, fields: Any, status: int, kind: str, said: str
) -> None:
    asked = client("x", EOS)
    assert said in problem(await asked.post(path, stream=stream, **fields), status, kind)
    assert asked.site.hops.wants == []


async def test_t92_values_are_not_echoed(client: Any) -> None:
    reply = await client("x", EOS).post(messages=[{"role": "secret", "content": "secret"}])
    assert "secret" not in reply.text


async def test_a_context_that_is_too_long_has_the_words_that_clients_know(client: Any) -> None:
    asked = client("x", EOS, context=100)
    message = problem(await asked.post(max_tokens=100), 400, "invalid_request_error")
    assert "This model's maximum context length is 100 tokens." in message


async def test_a_schema_that_cannot_be_enforced_is_refused_by_its_path(client: Any) -> None:
    schema = {"type": "array", "uniqueItems": True}
    config = {"format": {"type": "json_schema", "schema": schema}}
    reply = await client("x", EOS).post(output_config=config)
    message = problem(reply, 400, "invalid_request_error")
    assert "output_config.format.schema" in message
    strict = {"name": "f", "strict": True, "input_schema": {"type": "object", "not": {}}}
    message = problem(await client("x", EOS).post(tools=[strict]), 400, "invalid_request_error")
    assert "tools[0].input_schema" in message


async def test_a_bug_is_told_in_anthropics_envelope(client: Any) -> None:
    asked = client("x", EOS)
    asked.site.hops.failures["reserve"] = [KeyError("secret")] * 3
    assert "secret" not in problem(await asked.post(), 500, "api_error")


async def test_a_gateway_that_leaves_says_so(client: Any) -> None:
    asked = client("x", EOS)
    await asked.site.traffic.drain(1.0)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        problem(await asked.post(path), 503, "overloaded_error")


async def test_ignored_parameters_are_named(client: Any) -> None:
    for stream in (False, True):
        reply = await client("x", EOS).post(stream=stream, tempature=1, service_tier="auto")
        assert reply.headers["x-ignored-params"] == "tempature"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", **ANSWER},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}, **ANSWER},
        {"output_config": {"effort": "max"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"messages": [{"role": "user", "content": "漢字 " * 900}]},
    ],
    ids=lambda fields: "-".join(fields),
)
async def test_counted_tokens_are_those_that_an_answer_costs(client: Any, fields: Any) -> None:
    asked = client("x", EOS, context=16384, cached_tokens=3)
    usage = (await asked.whole(**fields))["usage"]
    body = asked.body(**fields)
    del body["max_tokens"]
    reply = await asked.site.http.post("/v1/messages/count_tokens", json=body)
    assert reply.json() == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]
    }


async def test_a_prompt_that_is_too_long_can_be_counted(client: Any) -> None:
    asked = client("x", EOS, context=20)
    message = {"role": "user", "content": "word " * 5000}
    reply = await asked.post("/v1/messages/count_tokens", messages=[message])
    assert reply.json()["input_tokens"] > 5000


def image(data: str = PIXEL) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def test_images_are_counted_and_bad_ones_named_wherever_they_stand(client: Any) -> None:
    asked = client("x", EOS)
    text = {"type": "text", "text": "What is this?"}

    async def count(*blocks: Any) -> Any:
        messages = [{"role": "user", "content": list(blocks)}]
        return await asked.post("/v1/messages/count_tokens", messages=messages)

    bare = (await count(text)).json()["input_tokens"]
    assert (await count(text, image())).json()["input_tokens"] > bare
    message = problem(await count(text, image("aGk=")), 400, "invalid_request_error")
    assert message.startswith("messages[0].content[1].source")
    linked = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    message = problem(await count(linked), 400, "invalid_request_error")
    assert message.startswith("messages[0].content[0].source")
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text, image("aGk=")]}
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    reply = await asked.post("/v1/messages/count_tokens", messages=history)
    message = problem(reply, 400, "invalid_request_error")
    assert message.startswith("messages[2].content[0].content[1].source")


@pytest.mark.parametrize(
    ("policy", "thinks"),
    [
        (Policy(), True),
        (Policy(messages_default_thinking=False), False),
        (Policy(aliases=read_aliases("tiny=plain")), False),
        (Policy(aliases=read_aliases("tiny=thinking"), messages_default_thinking=False), True),
    ],
)
async def test_the_operator_says_whether_requests_think_that_do_not_say(
    client: Any, policy: Policy, thinks: bool
) -> None:
    asked = client("x", EOS, policy=policy)
    await asked.whole()
    opening = Marker.THINK if thinks else Marker.END_THINK
    assert asked.prompt[-1:] == asked.encoded(opening)
    counted = await asked.post("/v1/messages/count_tokens")
    assert counted.json() == {"input_tokens": len(asked.prompt)}
    await asked.whole(thinking={"type": "enabled"})
    assert asked.prompt[-1:] == asked.encoded(Marker.THINK)


@pytest.mark.parametrize("style", ["comment", "chunk", "comment+chunk"])
async def test_a_silent_stream_is_pinged_in_every_style_but_off(client: Any, style: Any) -> None:
    for used, is_pinged in ((style, True), ("off", False)):
        patience = Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.04, style=used)
        asked = client("one", EOS, patience=patience)
        asked.site.hops.holds = {"first"}
        asyncio.get_running_loop().call_later(0.1, asked.site.hops.release)
        events = await asked.events(**ANSWER)
        assert (events[0][0] == "ping") is is_pinged
