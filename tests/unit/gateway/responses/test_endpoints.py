"""Paths of the Responses API, and how what is wrong is told."""

from typing import Any

import pytest

from diptych.gateway.policy import Policy, read_aliases
from diptych.text.markers import Marker

EOS = Marker.EOS


def problem(reply: Any, status: int) -> dict[str, Any]:
    """An error in OpenAI's envelope."""
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"] == reply.headers["x-request-id"]
    return error


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("rest", ["resp_1", "resp_1/cancel", "resp_1/input_items"])
async def test_responses_are_not_stored(client: Any, method: str, rest: str) -> None:
    reply = await client("x", EOS).site.http.request(method, f"/v1/responses/{rest}")
    assert problem(reply, 404)["code"] == "response_not_found"


async def test_other_methods_are_not_allowed(client: Any) -> None:
    reply = await client("x", EOS).site.http.get("/v1/responses")
    assert problem(reply, 405)["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "x"}, 404, "model_not_found", "model"),
        ({"input": []}, 400, "invalid_messages", "input"),
        ({"previous_response_id": "r"}, 400, "unsupported_parameter", "previous_response_id"),
        ({"max_output_tokens": 5000}, 400, "context_length_exceeded", "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            400,
            "unsupported_content_part",
            "input[0].content[0]",
        ),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "n",
                        "schema": {"type": "array", "uniqueItems": True},
                    }
                }
            },
            400,
            "invalid_schema",
            "text.format.schema.uniqueItems",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            400,
            "invalid_value",
            "text.format.schema",
        ),
        (
            {
                "tools": [
                    {"type": "function", "name": "f", "strict": True, "parameters": {"not": {}}}
                ]
            },
            400,
            "invalid_schema",
            None,
        ),
    ],
)
async def test_what_is_wrong_is_said_before_any_station_is_bothered(
    client: Any, fields: Any, status: int, code: str, param: str | None, stream: bool
) -> None:
    asked = client("x", EOS)
    error = problem(await asked.post(stream=stream, **fields), status)
    assert error["code"] == code
    assert error["param"].startswith(param or "tools[0].parameters")
    assert asked.site.hops.wants == []


async def test_what_is_dropped_is_named(client: Any) -> None:
    for stream in (False, True):
        reply = await client("x", EOS).post(stream=stream, tools=[{"type": "web_search"}], odd=1)
        assert reply.status_code == 200
        assert reply.headers["x-ignored-params"] == "odd, tools[0]"


async def test_a_forced_function_of_a_namespace_is_enforced(client: Any) -> None:
    get = {"type": "function", "name": "get", "parameters": {"type": "object"}}
    tools = [{"type": "namespace", "name": "crm", "tools": [get]}]
    asked = client("x", EOS)
    await asked.whole(tools=tools, tool_choice={"type": "function", "name": "crm::get"})
    constraint = asked.site.hops.generations[-1].constraint
    assert constraint is not None
    assert "crm::get" in constraint.source


async def test_t107_users_do_not_share_cached_blocks(client: Any) -> None:
    asked = client("x", EOS)
    for user in ("a", "b", "a"):
        await asked.whole(input="word " * 20, user_id=user)
    first, second, third = (want.hashes for want in asked.site.hops.wants)
    assert first == third != second


async def test_what_an_engine_refuses_later_has_the_name_of_the_field_here(client: Any) -> None:
    asked = client("{}", EOS)
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    await asked.whole(text={"format": schema})
    constraint = asked.site.hops.generations[-1].constraint
    assert constraint is not None
    assert constraint.param == "text.format.schema"


async def test_the_operator_may_take_user_for_user_id(client: Any) -> None:
    for policy, share in ((Policy(), True), (Policy(map_user_to_user_id=True), False)):
        asked = client("x", EOS, policy=policy)
        for user in ("a", "b"):
            await asked.whole(input="word " * 20, user=user)
        first, second = (want.hashes for want in asked.site.hops.wants)
        assert (first == second) is share


async def test_a_name_of_the_model_may_say_not_to_think(client: Any) -> None:
    asked = client("x", EOS, policy=Policy(aliases=read_aliases("quick=plain")))
    await asked.whole(model="quick")
    assert asked.prompt[-1:] == asked.encoded(Marker.END_THINK)
    await asked.whole(model="quick", reasoning={"effort": "high"})
    assert asked.prompt[-1:] == asked.encoded(Marker.THINK)


async def test_images_are_named_wherever_they_stand(client: Any) -> None:
    bad = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    said = {"role": "user", "content": [{"type": "input_text", "text": "x"}, bad]}
    error = problem(await client("x", EOS).post(input=[said]), 400)
    assert error["code"] == "invalid_image"
    assert error["param"] == "input[0].content[1].image_url"
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [bad]}
    error = problem(await client("x", EOS).post(input=[call, result]), 400)
    assert error["param"] == "input[1].output[0].image_url"
