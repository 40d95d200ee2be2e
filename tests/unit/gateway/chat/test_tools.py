"""What a request says about tools: what is accepted, what it comes to, what is refused."""

import json
from typing import Any

import pytest

from diptych.core.constraint import Constraint, Kind
from diptych.core.errors import BadRequest
from diptych.gateway.chat.constraint import constraint_of, opens_calls
from diptych.gateway.chat.request import ChatRequest, read_chat
from diptych.text.constraints import check

STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}}
OFF = {"thinking": {"type": "disabled"}}


def tool(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [tool(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def request(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "x"}]
    return read_chat({"model": "m", "messages": messages} | fields)[0]


def names(request: ChatRequest) -> list[str]:
    return [tool.name for tool in request.calling.shown]


def source(found: Constraint | None) -> dict[str, Any]:
    assert found is not None and found.kind is Kind.TOOL_CALLS
    check(found)
    return json.loads(found.source)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("f", "tools"),
        ([tool("f")] * 513, "tools"),
        (["f"], "tools[0]"),
        ([{"function": {"name": "f"}}], "tools[0].type"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([tool(), {"type": "function"}], "tools[1].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([tool("")], "tools[0].function.name"),
        ([tool("a.b")], "tools[0].function.name"),
        ([tool("é")], "tools[0].function.name"),
        ([tool("f\n")], "tools[0].function.name"),
        ([tool("f" * 129)], "tools[0].function.name"),
        ([tool(7)], "tools[0].function.name"),
        ([tool("f"), tool("g"), tool("f")], "tools[2].function.name"),
        ([tool(description=7)], "tools[0].function.description"),
        ([tool(parameters="{}")], "tools[0].function.parameters"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters"),
        ([tool(parameters={"type": ["null"]})], "tools[0].function.parameters"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(description="x" * 2**20)], "tools"),
    ],
)
def test_a_bad_tool_is_refused_by_its_path(tools: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        request(tools=tools)
    assert (caught.value.code, caught.value.param) == ("invalid_tools", param)
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        7,
        {},
        {"type": "function"},
        {"type": "function", "function": {"name": 7}},
        {"type": "function", "function": {"name": "g"}},
        allowed("auto", "g"),
        allowed("auto", "f", "g"),
        allowed("auto"),
        allowed("none", "f"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
    ],
)
def test_a_choice_that_chooses_nothing_is_refused(choice: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        request(tools=[tool()], tool_choice=choice)
    assert (caught.value.code, caught.value.param) == ("invalid_tools", "tool_choice")


@pytest.mark.parametrize("choice", ["required", tool(), allowed("auto", "f")])
@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_none_can_be_forced(tools: Any, choice: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        request(tools=tools, tool_choice=choice)
    assert (caught.value.code, caught.value.param) == ("invalid_tools", "tool_choice")


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_no_tools_are_nothing_to_call(choice: Any) -> None:
    assert request(tools=[], tool_choice=choice).calling.shown == ()
    assert constraint_of(request(tools=[], tool_choice=choice)) is None


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"description": "anything"}, {"type": ["object", "null"]}, {"type": "object"}],
)
def test_schemas_of_objects_are_taken_as_they_are(parameters: Any) -> None:
    (shown,) = request(tools=[tool(parameters=parameters, strict=None)]).calling.shown
    assert shown.parameters == (parameters or {})
    assert shown.description == ""


@pytest.mark.parametrize(
    ("choice", "shown", "enforced", "forced"),
    [
        ("none", [], None, False),
        ("auto", ["f", "g"], None, False),
        (None, ["f", "g"], None, False),
        ("required", ["f", "g"], ["f", "g"], True),
        (tool("g"), ["f", "g"], ["g"], True),
        (allowed("auto", "g"), ["g"], None, False),
        (allowed("required", "g"), ["g"], ["g"], True),
    ],
)
def test_every_choice_shows_and_enforces_its_tools(
    choice: Any, shown: list[str], enforced: list[str] | None, forced: bool
) -> None:
    asked = request(tools=[tool("f"), tool("g")], tool_choice=choice)
    assert names(asked) == shown
    assert asked.calling.is_forced == forced
    assert not opens_calls(asked)
    found = constraint_of(asked)
    if enforced is None:
        assert found is None
        return
    held = source(found)
    assert [name for name, _ in held["tools"]] == enforced
    assert (held["forced"], held["opened"]) == (True, False)
    unthinking = request(tools=[tool("f"), tool("g")], tool_choice=choice, **OFF)
    assert opens_calls(unthinking)
    assert source(constraint_of(unthinking))["opened"] is True


@pytest.mark.parametrize("choice", ["auto", allowed("auto", "g")])
def test_one_strict_tool_is_enough_for_a_grammar(choice: Any) -> None:
    tools = [tool("f"), tool("g", parameters=STRICT, strict=True)]
    held = source(constraint_of(request(tools=tools, tool_choice=choice)))
    assert held["forced"] is False
    assert held["tools"][-1][1]["required"] == ["n"]


def test_a_strict_tool_that_is_not_allowed_asks_for_nothing() -> None:
    tools = [tool("f", parameters=STRICT, strict=True), tool("g")]
    assert constraint_of(request(tools=tools, tool_choice=allowed("auto", "g"))) is None


def test_what_strict_cannot_enforce_is_refused_where_it_stands() -> None:
    bad = {"type": "object", "properties": {"n": {"not": {}}}}
    tools = [tool("f"), tool("g", parameters=bad, strict=True)]
    with pytest.raises(BadRequest) as caught:
        constraint_of(request(tools=tools, tool_choice=allowed("auto", "g")))
    assert caught.value.param == "tools[1].function.parameters.properties.n.not"


def test_an_answer_may_be_a_document_or_a_call() -> None:
    found = constraint_of(request(tools=[tool()], response_format={"type": "json_object"}))
    answer = Constraint.unpack(source(found)["answer"].encode())
    assert answer.kind is Kind.JSON_OBJECT


@pytest.mark.parametrize("is_parallel", [True, False])
def test_one_call_at_most_if_they_shall_not_be_parallel(is_parallel: bool) -> None:
    asked = request(tools=[tool()], tool_choice="required", parallel_tool_calls=is_parallel)
    assert source(constraint_of(asked))["parallel"] is is_parallel


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": tool()}, "tool_choice"),
        ({"tools": [tool(parameters=STRICT, strict=True)]}, "tools"),
    ],
)
def test_an_answer_that_has_begun_cannot_be_forced_to_call(
    fields: dict[str, Any], param: str
) -> None:
    begun = {"role": "assistant", "content": "x", "prefix": True}
    with pytest.raises(BadRequest) as caught:
        constraint_of(request(**{"tools": [tool()], "messages": [begun], **fields}))
    assert (caught.value.code, caught.value.param) == ("conflicting_parameters", param)
    with pytest.raises(BadRequest) as caught:
        constraint_of(request(**{"tools": [tool()], "ignore_eos": True, **fields}))
    assert (caught.value.code, caught.value.param) == ("conflicting_parameters", "ignore_eos")
