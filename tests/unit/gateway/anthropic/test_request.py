"""Fields of a Messages request: what they mean in a chat, and what is said when they are wrong."""

from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.anthropic.request import CountRequest, MessagesRequest, translate
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.chat.tools import Mode

USER = {"role": "user", "content": "hi"}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "f", "input": fields}


def result(name: str, content: Any = "out") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [USER], **fields}


def read(**fields: Any) -> ChatRequest:
    return translate(body(**fields), MessagesRequest).read()


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": None}, "missing_required_parameter", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": "7"}, "invalid_type", "max_tokens"),
        ({"max_tokens": True}, "invalid_type", "max_tokens"),
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": ""}, "missing_required_parameter", "model"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "invalid_messages", "messages[0]"),
        ({"messages": ["x"]}, "invalid_messages", "messages[0]"),
        (
            {"messages": [{"role": "user"}]},
            "missing_required_parameter",
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": 3}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_messages", "messages[0]"),
        (
            {"messages": [{"role": "system", "content": "x"}, assistant(text("x"))]},
            "invalid_messages",
            "messages[1]",
        ),
        (
            {"messages": [user(text("a"), {"type": "text", "text": 5})]},
            "invalid_type",
            "messages[0].content[1].text",
        ),
        *(
            (
                {"messages": [user({"type": kind})]},
                "unsupported_content_part",
                "messages[0].content[0]",
            )
            for kind in ("document", "redacted_thinking", "thinking", "tool_use", "odd")
        ),
        *(
            (
                {"messages": [USER, assistant(text("x"), {"type": kind}), USER]},
                "unsupported_content_part",
                "messages[1].content[1]",
            )
            for kind in ("redacted_thinking", "server_tool_use", "image", "tool_result")
        ),
        (
            {"messages": [user({"type": "image", "source": {"type": "file"}})]},
            "unsupported_content_part",
            "messages[0].content[0].source",
        ),
        (
            {"messages": [USER, assistant({**call("c"), "input": "{}"})]},
            "invalid_type",
            "messages[1].content[0].input",
        ),
        (
            {"messages": [USER, assistant(text("a"), call("c"))]},
            "invalid_messages",
            "messages[1].content[1]",
        ),
        (
            {"messages": [USER, assistant(call("c")), user(text("no result"))]},
            "invalid_messages",
            "messages[1].content[0]",
        ),
        (
            {"messages": [USER, assistant(call("c"), call("c"))]},
            "invalid_messages",
            "messages[1].content[1].id",
        ),
        (
            {"messages": [USER, assistant(call("c")), user(result("d"))]},
            "invalid_messages",
            "messages[2].content[0].tool_use_id",
        ),
        ({"messages": [user(result("c"))]}, "invalid_messages", "messages[0].content[0]"),
        ({"system": 5}, "invalid_type", "system"),
        ({"system": [{"type": "image"}]}, "invalid_value", "system[0].type"),
        ({"stop_sequences": [""]}, "invalid_value", "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "invalid_value", "stop_sequences"),
        ({"stop_sequences": 5}, "invalid_type", "stop_sequences"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_k": -2}, "invalid_value", "top_k"),
        ({"stream": 1}, "invalid_type", "stream"),
        ({"thinking": {"type": "maybe"}}, "invalid_value", "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "invalid_type", None),
        ({"output_config": {"effort": "huge"}}, "invalid_value", "output_config.effort"),
        ({"output_config": {"format": {"type": "regex"}}}, "invalid_value", None),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "missing_required_parameter",
            "output_config.format.schema",
        ),
        ({"metadata": {"user_id": 5}}, "invalid_type", "metadata.user_id"),
        ({"metadata": {"user_id": "é" * 300}}, "invalid_value", "metadata.user_id"),
        ({"tools": [{"name": "f"}]}, "invalid_tools", "tools[0].input_schema"),
        ({"tools": [{**TOOLS[0], "name": "a b"}]}, "invalid_tools", "tools[0].name"),
        ({"tools": [*TOOLS, *TOOLS]}, "invalid_tools", "tools[1].name"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
            "invalid_tools",
            "tools[0].input_schema",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "invalid_tools",
            "tools[0]",
        ),
        ({"tool_choice": {"type": "any"}}, "invalid_tools", "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": TOOLS}, "invalid_tools", None),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "invalid_tools", "tool_choice"),
        ({"tool_choice": "any", "tools": TOOLS}, "invalid_tools", "tool_choice"),
        ({"container": "c"}, "unsupported_parameter", "container"),
        ({"mcp_servers": [{}]}, "unsupported_parameter", "mcp_servers"),
        ({"output_format": {}}, "unsupported_parameter", "output_format"),
        ({"min_p": 2}, "invalid_value", "min_p"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_it_has_here(
    fields: dict[str, Any], code: str, param: str | None
) -> None:
    error = refused(**fields)
    assert error.code == code
    if param is not None:
        assert error.param == param
    assert error.param is not None
    assert "function" not in error.message
    assert "response_format" not in error.message


def test_the_message_speaks_of_the_same_field() -> None:
    error = refused(stop_sequences=["", 5], output_config={"effort": "huge"})
    assert "stop_sequences[0]: " in error.message
    assert "stop_sequences[1]: " in error.message
    assert "output_config.effort: " in error.message


def test_a_limit_above_the_bound_is_clamped() -> None:
    assert read(max_tokens=10_000_000).output_limit == 393_216
    assert read(max_tokens=77.0).output_limit == 77


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, 75),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 75),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, 100),
        ({"output_config": {"effort": "low"}}, 50),
        ({"output_config": {"effort": 33}}, 33),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, None),
        ({"output_config": {"effort": "none"}}, None),
    ],
)
def test_how_hard_to_think(fields: dict[str, Any], effort: int | None) -> None:
    assert read(**fields).effort == effort


def test_the_operator_may_turn_thinking_off_for_those_who_do_not_say() -> None:
    assert translate(body(), MessagesRequest, thinks=False).read().effort is None
    said = body(thinking={"type": "enabled"})
    assert translate(said, MessagesRequest, thinks=False).read().effort == 75


@pytest.mark.parametrize(
    ("choice", "mode", "only", "parallel"),
    [
        (None, Mode.AUTO, None, True),
        ({"type": "auto"}, Mode.AUTO, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, Mode.AUTO, None, False),
        ({"type": "any", "disable_parallel_tool_use": False}, Mode.REQUIRED, None, True),
        ({"type": "tool", "name": "f"}, Mode.REQUIRED, "f", True),
        ({"type": "none"}, Mode.NONE, None, True),
    ],
)
def test_what_may_be_called(choice: Any, mode: Mode, only: str | None, parallel: bool) -> None:
    calling = read(tools=TOOLS, tool_choice=choice).calling
    assert (calling.choice.mode, calling.choice.only) == (mode, only)
    assert calling.is_parallel is parallel


def test_tools_keep_their_schema_description_and_strictness() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    tool = {"name": "f", "description": "D", "input_schema": schema, "strict": True}
    (definition,) = read(tools=[{**tool, "type": "custom", "cache_control": {}}]).tools
    function = definition.function
    assert (function.name, function.description, function.strict) == ("f", "D", True)
    assert list((function.parameters or {})["properties"]) == ["b", "a"]


def test_sampling_and_other_fields_reach_the_chat() -> None:
    request = read(
        temperature=0.5, top_p=0.25, top_k=7, seed=3, stop_sequences=["a", "b"], stream=True,
        metadata={"user_id": "u"}, min_p=0.1, ignore_eos=True,
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.25, 7)
    assert (request.seed, request.stop, request.stream) == (3, ["a", "b"], True)
    assert (request.user_id, request.min_p, request.ignore_eos) == ("u", 0.1, True)


def test_a_schema_of_the_answer_is_a_response_format() -> None:
    schema = {"type": "object"}
    request = read(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert request.response_format == {"type": "json_schema", "json_schema": {"schema": schema}}


def test_unknown_fields_are_named_and_known_ones_that_do_nothing_are_not() -> None:
    fields = body(service_tier="auto", tempature=1, cache_control={}, mcp_servers=[], speed=None)
    translation = translate(fields, MessagesRequest)
    assert translation.ignored == ("tempature",)
    assert translation.harmless == ("cache_control", "service_tier")


def test_counting_needs_no_limit() -> None:
    fields = body()
    del fields["max_tokens"]
    assert translate(fields, CountRequest).read().output_limit is None
