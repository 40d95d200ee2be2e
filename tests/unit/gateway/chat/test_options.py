"""What the operator's options change for chats."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from diptych.gateway.policy import Alias, Policy
from diptych.text.markers import Marker

EOS, END_THINK = Marker.EOS, Marker.END_THINK
ON = {"thinking": {"type": "enabled"}}
TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
RESULT = {"role": "tool", "tool_call_id": "c", "content": "r"}
ALIASES = (
    Alias("deepseek-chat", thinks=False),
    Alias("deepseek-reasoner", True),
    Alias("claude-*"),
)


def asked(site: Any) -> Any:
    return site.hops.generations[-1].sampling


async def test_sampling_is_what_the_client_wants_by_default(serve: Any) -> None:
    site = serve("x", END_THINK, EOS)
    for fields in ({}, ON):
        await site.ask(**fields, temperature=0.3, top_p=0.2, presence_penalty=1)
        assert (asked(site).temperature, asked(site).top_p) == (0.3, 0.2)
        assert asked(site).presence_penalty == 1


async def test_sampling_may_be_what_deepseek_makes_of_it(serve: Any) -> None:
    site = serve("x", END_THINK, EOS, policy=Policy(sampling_policy="deepseek"))
    wishes = {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1, "seed": 5}
    for top_p, clamped in ((0.2, 0.95), (0.97, 0.97), (1, 1.0)):
        await site.ask(**ON, temperature=0.3, top_p=top_p, **wishes)
        assert (asked(site).temperature, asked(site).top_p) == (1.0, clamped)
        assert not asked(site).has_penalties and asked(site).seed == 5
        await site.ask(temperature=0.3, top_p=top_p, **wishes)
        assert (asked(site).temperature, asked(site).top_p) == (0.3, 1.0)
        assert asked(site).presence_penalty == 1


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("both", {"reasoning_content", "reasoning"}),
    ],
)
async def test_t30_reasoning_has_the_name_that_clients_look_for(
    serve: Any, field: Any, names: set[str]
) -> None:
    site = serve("Hm", END_THINK, "Hi", EOS, policy=Policy(reasoning_field=field))
    said = (await site.ask(**ON)).json()["choices"][0]["message"]
    assert {name: said[name] for name in names} == dict.fromkeys(names, "Hm")
    assert said.keys() == {"role", "content"} | names
    events = await site.events(**ON)
    assert events[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": None,
        **dict.fromkeys(names, ""),
    }
    deltas = [event["choices"][0]["delta"] for event in events[1:-1]]
    for name in names:
        assert "".join(delta.get(name, "") for delta in deltas) == "Hm"
    default = serve("Hm", END_THINK, "Hi", EOS)
    said = (await default.ask(**ON)).json()["choices"][0]["message"]
    assert said["reasoning_content"] == "Hm" and "reasoning" not in said


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": True}}])
async def test_usage_may_come_as_deepseek_sends_it(serve: Any, fields: dict[str, Any]) -> None:
    site = serve("one two", EOS, policy=Policy(stream_usage_style="deepseek"))
    whole = (await site.ask(n=2)).json()["usage"]
    events = await site.events(n=2, **fields)
    assert events.pop() == "[DONE]"
    assert [event["usage"] for event in events] == [None] * (len(events) - 1) + [whole]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_every_name_of_the_model_is_answered_by_its_own(serve: Any) -> None:
    site = serve("Hm", END_THINK, "Hi", EOS, policy=Policy(aliases=ALIASES))
    for name in ("tiny", "deepseek-chat", "deepseek-reasoner", "claude-sonnet-5"):
        reply = await site.ask(model=name)
        assert reply.json()["model"] == "tiny", reply.text
    for name in ("gpt-5", "deepseek-chat2", "xclaude-1", "claude"):
        reply = await site.ask(model=name)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("model", "fields", "thinks"),
    [
        ("tiny", {}, True),
        ("claude-1", {}, True),
        ("deepseek-chat", {}, False),
        ("deepseek-chat", ON, True),
        ("deepseek-chat", {"chat_template_kwargs": {"enable_thinking": True}}, True),
        ("deepseek-chat", {"reasoning_effort": "high"}, False),
        ("deepseek-reasoner", {}, True),
        ("deepseek-reasoner", {"thinking": {"type": "disabled"}}, False),
        ("deepseek-reasoner", {"reasoning_effort": "none"}, False),
    ],
)
async def test_a_name_decides_whether_to_think_where_the_client_does_not(
    serve: Any, model: str, fields: dict[str, Any], thinks: bool
) -> None:
    site = serve("Hm", END_THINK, "Hi", EOS, policy=Policy(aliases=ALIASES))
    body = site.body(model=model) | {"thinking": None} | fields
    reply = await site.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert ("reasoning_content" in reply.json()["choices"][0]["message"]) is thinks


async def test_models_are_listed_by_every_name_and_found_by_any(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(aliases=ALIASES))
    own, *others = (await site.http.get("/v1/models")).json()["data"]
    assert own["id"] == "tiny" and own["aliases"] == [alias.name for alias in ALIASES]
    assert [model["id"] for model in others] == ["deepseek-chat", "deepseek-reasoner"]
    assert {model["root"] for model in others} == {"tiny"}
    assert (await site.http.get("/v1/models/deepseek-chat")).json() == others[0]
    assert (await site.http.get("/v1/models/claude-opus-5")).json()["id"] == "claude-opus-5"
    assert (await site.http.get("/v1/models/gpt-5")).status_code == 404


async def test_anthropics_clients_get_the_list_in_their_shape(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(aliases=ALIASES))
    theirs = {"anthropic-version": "2023-06-01"}
    found = (await site.http.get("/v1/models", headers=theirs)).json()
    assert found["has_more"] is False
    assert (found["first_id"], found["last_id"]) == ("tiny", "deepseek-reasoner")
    assert [model["type"] for model in found["data"]] == ["model"] * 3
    one = (await site.http.get("/v1/models/tiny", headers=theirs)).json()
    assert one == found["data"][0]
    assert one.keys() == {"type", "id", "display_name", "created_at"}
    assert one["created_at"].endswith("Z")


async def test_a_user_is_a_user_id_only_if_the_operator_says_so(serve: Any) -> None:
    scopes = {}
    for mapped in (False, True):
        site = serve("x", EOS, policy=Policy(map_user_to_user_id=mapped))
        for name, fields in {
            "nobody": {},
            "user": {"user": "ann"},
            "user_id": {"user_id": "ann"},
            "both": {"user": "bob", "user_id": "ann"},
        }.items():
            await site.ask(**fields)
            scopes[mapped, name] = site.hops.generations[-1].scope
    assert scopes[False, "user"] == scopes[False, "nobody"] != scopes[False, "user_id"]
    assert scopes[True, "user"] == scopes[True, "user_id"] == scopes[True, "both"]
    assert scopes[False, "both"] == scopes[True, "both"]


async def test_an_explicit_limit_may_be_clipped(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(clip_explicit_max_tokens=True))
    await site.ask(max_tokens=5000)
    generation = site.hops.generations[-1]
    assert generation.max_new == 512 - len(generation.prompt)
    await site.ask(max_tokens=5)
    assert site.hops.generations[-1].max_new == 5
    long = [{"role": "user", "content": "word " * 300}]
    reply = await site.ask(max_tokens=5000, messages=long)
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("reasoning", "mode", "strict", "status"),
    [
        ({}, ON, True, 400),
        ({"reasoning_content": ""}, ON, True, 200),
        ({"reasoning": "r"}, ON, True, 200),
        ({}, {}, True, 200),
        ({}, ON, False, 200),
    ],
)
async def test_t32_reasoning_that_is_not_passed_back_is_missed_only_if_the_operator_is_strict(
    serve: Any, reasoning: dict[str, str], mode: dict[str, Any], strict: bool, status: int
) -> None:
    site = serve("x", END_THINK, EOS, policy=Policy(strict_reasoning_passback=strict))
    site.fleet = replace(site.fleet, max_model_len=8192)
    calling = {"role": "assistant", "content": None, "tool_calls": CALLS, **reasoning}
    messages = [{"role": "user", "content": "u"}, calling, RESULT]
    reply = await site.ask(messages=messages, tools=[TOOL], **mode)
    assert reply.status_code == status, reply.text
    if status == 400:
        error = reply.json()["error"]
        assert error["param"] == "messages[1].reasoning_content"
        assert error["code"] == "invalid_messages"
        assert error["message"] == (
            "The `reasoning_content` in the thinking mode must be passed back to the API."
        )


@pytest.mark.parametrize("compatible", [False, True])
async def test_t37_forced_calls_in_thinking_mode_work_unless_the_operator_wants_deepseeks_error(
    serve: Any, compatible: bool
) -> None:
    site = serve("x", EOS, policy=Policy(deepseek_compat_errors=compatible))
    site.fleet = replace(site.fleet, max_model_len=8192)
    reply = await site.ask(tools=[TOOL], tool_choice="required", **ON)
    assert reply.status_code == (400 if compatible else 200)
    if compatible:
        error = reply.json()["error"]
        assert error["message"] == "Thinking mode does not support this tool_choice"
        assert error["param"] == "tool_choice"
    else:
        generation = site.hops.generations[-1]
        assert generation.constraint is not None and generation.constraint_after == "</think>"
    assert (await site.ask(tools=[TOOL], tool_choice="required")).status_code == 200
    assert (await site.ask(tools=[TOOL], tool_choice="auto", **ON)).status_code == 200


async def test_the_number_of_choices_is_the_operators(serve: Any) -> None:
    assert (await serve("x", EOS).ask(n=17)).json()["error"]["param"] == "n"
    few = serve("x", EOS, policy=Policy(max_n=2))
    assert (await few.ask(n=2)).status_code == 200
    assert (await few.ask(n=3)).json()["error"]["code"] == "invalid_value"
    many = serve("x", EOS, policy=Policy(max_n=20))
    assert len((await many.ask(n=20)).json()["choices"]) == 20


@pytest.mark.parametrize("name", ["org/tiny", "a/b/c", "größe/x"])
async def test_t104_a_model_is_found_though_its_name_has_slashes(serve: Any, name: str) -> None:
    site = serve("x", EOS, policy=Policy(aliases=(Alias(name),)))
    for spelled in (name, quote(name), quote(name, safe="")):
        reply = await site.http.get(f"/v1/models/{spelled}")
        assert (reply.status_code, reply.json()["id"]) == (200, name)
    assert (await site.ask(model=name)).status_code == 200
    assert (await site.http.get("/v1/models/org/nobody")).json()["error"]["code"] == (
        "model_not_found"
    )
