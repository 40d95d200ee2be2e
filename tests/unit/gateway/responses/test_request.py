"""Fields of a Responses request: what they mean in a chat, and what is said when they are wrong."""

from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.chat.request import ChatRequest
from diptych.gateway.chat.tools import Mode
from diptych.gateway.responses.request import MAX_ECHO_CHARS, Asked, translate

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
MEMBERS = [
    {"type": "function", "name": "get", "description": "gets", "parameters": {"type": "object"}},
    {"type": "function", "name": "put", "strict": True},
]
CRM = {"type": "namespace", "name": "crm", "description": "the crm", "tools": MEMBERS}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}


def asked(**fields: Any) -> Asked:
    return translate({"model": "m", "input": "hi", **fields})


def read(**fields: Any) -> ChatRequest:
    return asked(**fields).translation.read()


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    return caught.value


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "r"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"moderation": {"model": "m"}}, "unsupported_parameter", "moderation"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": None, "instructions": ""}, "missing_required_parameter", "input"),
        ({"input": []}, "invalid_messages", "input"),
        ({"input": [], "instructions": "x"}, "invalid_messages", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": ["x"]}, "invalid_messages", "input[0]"),
        ({"input": [{}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [USER, {"type": "odd"}]}, "invalid_messages", "input[1]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "custom_tool_call"}]}, "unsupported_parameter", "input[0]"),
        (part(type="input_file"), "unsupported_content_part", "input[0].content[0]"),
        (part(type="text", text="x"), "unsupported_content_part", "input[0].content[0]"),
        (part(type="input_text", text=5), "invalid_type", "input[0].content[0].text"),
        (
            part(type="input_image", file_id="f"),
            "missing_required_parameter",
            "input[0].content[0].image_url",
        ),
        ({"input": [USER, CALL]}, "invalid_messages", "input[1]"),
        ({"input": [USER, CALL, USER, OUTPUT]}, "invalid_messages", "input[1]"),
        ({"input": [OUTPUT]}, "invalid_messages", "input[0]"),
        ({"input": [USER, CALL, CALL, OUTPUT]}, "invalid_messages", "input[2].call_id"),
        (
            {"input": [USER, CALL, {**OUTPUT, "call_id": "d"}]},
            "invalid_messages",
            "input[2].call_id",
        ),
        (
            {"input": [USER, {**CALL, "arguments": {}}, OUTPUT]},
            "invalid_type",
            "input[1].arguments",
        ),
        (
            {"input": [{"type": "reasoning", "content": [{"type": "x", "text": "y"}]}]},
            "invalid_value",
            "input[0].content[0].type",
        ),
        ({"instructions": 5}, "invalid_type", "instructions"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 2.5}, "invalid_type", "max_output_tokens"),
        ({"max_output_tokens": 393_217}, "invalid_value", "max_output_tokens"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": -1}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": "1"}, "invalid_type", "top_logprobs"),
        ({"stream": 1}, "invalid_type", "stream"),
        ({"model": None}, "missing_required_parameter", "model"),
        ({"reasoning": "high"}, "invalid_type", "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "invalid_value", "reasoning.summary"),
        ({"text": {"format": "json"}}, "invalid_type", "text.format"),
        ({"text": {"verbosity": "huge"}}, "invalid_value", "text.verbosity"),
        ({"include": ["secrets"]}, "invalid_value", "include[0]"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "x" * 513}}, "invalid_value", "metadata"),
        ({"user": "x" * 513}, "invalid_value", "user"),
        ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
        ({"tools": [{"type": "file_search"}]}, "invalid_tools", "tools[0]"),
        ({"tools": [TOOL, {"type": "custom", "name": "x"}]}, "invalid_tools", "tools[1]"),
        ({"tools": [{"type": "function"}]}, "invalid_tools", "tools[0].name"),
        ({"tools": [{**TOOL, "name": "a::b"}]}, "invalid_tools", "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "invalid_tools", "tools[1].name"),
        (
            {"tools": [CRM, {**TOOL, "parameters": {"type": "array"}}]},
            "invalid_tools",
            "tools[1].parameters",
        ),
        (
            {"tools": [{**CRM, "tools": [{"type": "custom", "name": "x"}]}]},
            "invalid_tools",
            "tools[0].tools[0]",
        ),
        (
            {"tools": [{**CRM, "tools": [*MEMBERS, *MEMBERS]}]},
            "invalid_tools",
            "tools[0].tools[2].name",
        ),
        ({"tools": [{**CRM, "tools": []}]}, "invalid_tools", "tools[0].tools"),
        ({"tools": [{**CRM, "name": "a b"}]}, "invalid_tools", "tools[0].name"),
        ({"tool_choice": "required"}, "invalid_tools", "tool_choice"),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "invalid_tools", "tool_choice"),
        ({"tool_choice": {"type": "file_search"}, "tools": [TOOL]}, "invalid_tools", "tool_choice"),
        (
            {"tool_choice": {"type": "function", "name": "get"}, "tools": [CRM]},
            "invalid_tools",
            "tool_choice",
        ),
        ({"min_p": 2}, "invalid_value", "min_p"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_it_has_here(
    fields: dict[str, Any], code: str, param: str
) -> None:
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)
    assert "messages" not in error.message
    assert ".function" not in error.message
    assert "response_format" not in error.message


def test_what_is_stateful_is_refused_with_a_hint() -> None:
    assert "send the whole conversation" in refused(previous_response_id="x").message


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [(None, 75), ({}, 75), ({"effort": "none"}, None), ({"effort": "low"}, 50), ({"effort": 7}, 7)],
)
def test_how_hard_to_think(reasoning: Any, effort: int | None) -> None:
    assert read(reasoning=reasoning).effort == effort


def test_fields_that_ask_for_nothing_are_fine() -> None:
    request = asked(
        background=False, truncation="disabled", store=True, previous_response_id=None,
        service_tier="auto", prompt_cache_key="k", max_tool_calls=3, include=[], metadata={},
        stream_options={"include_obfuscation": False}, reasoning={"summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}}, tempature=1,
    )  # fmt: skip
    assert request.translation.read().messages
    assert request.translation.ignored == ("tempature",)
    assert request.translation.harmless == (
        "max_tool_calls", "prompt_cache_key", "service_tier", "stream_options",
    )  # fmt: skip
    assert request.echo["store"] is False


def test_sampling_and_other_fields_reach_the_chat() -> None:
    request = read(
        temperature=0.5, top_p=0.25, top_k=7, seed=3, stream=True, max_output_tokens=77,
        cache_salt="s", ignore_eos=True, user="u",
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.25, 7)
    assert (request.seed, request.stream, request.output_limit) == (3, True, 77)
    assert (request.cache_salt, request.ignore_eos) == ("s", True)


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 2.0}, 2),
    ],
)
def test_log_probabilities_are_asked_for_by_either_field(
    fields: dict[str, Any], top: int | None
) -> None:
    assert read(**fields).top == top


@pytest.mark.parametrize(
    ("choice", "mode", "only", "allowed"),
    [
        (None, Mode.AUTO, None, None),
        ("none", Mode.NONE, None, None),
        ("required", Mode.REQUIRED, None, None),
        ({"type": "function", "name": "f"}, Mode.REQUIRED, "f", None),
        ({"type": "function", "name": "crm::get"}, Mode.REQUIRED, "crm::get", None),
        (
            {"type": "function", "name": "get", "namespace": "crm"},
            Mode.REQUIRED,
            "crm::get",
            None,
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            Mode.AUTO,
            None,
            {"f"},
        ),
    ],
)
def test_what_may_be_called(choice: Any, mode: Mode, only: Any, allowed: Any) -> None:
    calling = read(tools=[TOOL, CRM], tool_choice=choice).calling
    assert (calling.choice.mode, calling.choice.only) == (mode, only)
    assert calling.choice.allowed == allowed
    assert calling.is_parallel


def test_functions_of_a_namespace_carry_both_names_and_descriptions() -> None:
    functions = [tool.function for tool in read(tools=[CRM, TOOL]).tools]
    assert [f.name for f in functions] == ["crm::get", "crm::put", "f"]
    assert [f.description for f in functions] == ["the crm\ngets", "the crm", None]
    assert [bool(f.strict) for f in functions] == [False, True, False]
    assert asked(tools=[CRM]).namespaces["crm::put"] == ("crm", "put")


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
def test_web_search_is_left_out_and_told(kind: str) -> None:
    search = {"type": kind, "search_context_size": "low"}
    request = asked(tools=[search, TOOL], tool_choice={"type": kind})
    assert [tool.function.name for tool in request.translation.read().tools] == ["f"]
    assert request.translation.ignored == ("tools[0]", "tool_choice")
    assert request.echo["tools"] == [TOOL]
    assert request.echo["tool_choice"] == "auto"
    items = [{"type": "web_search_call", "id": "w", "status": "completed"}, USER]
    assert len(read(input=items).messages) == 1


@pytest.mark.parametrize(
    ("asked_for", "meant"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {}, "strict": True},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        ),
    ],
)
def test_a_format_is_a_response_format(asked_for: Any, meant: Any) -> None:
    request = asked(text={"format": asked_for, "verbosity": "low"})
    assert request.translation.read().response_format == meant
    assert request.echo["text"] == {"format": asked_for, "verbosity": "low"}


def test_instructions_beyond_all_measure_are_not_repeated() -> None:
    assert asked(instructions="x" * MAX_ECHO_CHARS).echo["instructions"] is not None
    assert asked(instructions="x" * (MAX_ECHO_CHARS + 1)).echo["instructions"] is None
