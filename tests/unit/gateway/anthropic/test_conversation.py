"""Blocks to prompts, beside the encoder that DeepSeek published."""

import json
from typing import Any

import deepseek_recipe as recipe
import pytest

from diptych.gateway.anthropic.request import MessagesRequest, translate
from diptych.gateway.chat.preparation import chat_of
from diptych.text.chat import render
from diptych.text.markers import spell

USER = {"role": "user", "content": "hi"}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thought(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": "s"}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "f", "input": fields}


def result(name: str, content: Any = "out") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def ours(**fields: Any) -> str:
    request = translate({"model": "m", "max_tokens": 9, **fields}, MessagesRequest).read()
    return spell(render(chat_of(request)))


def theirs(**fields: Any) -> str:
    version = recipe.ModelVersion.DeepseekV41Flash
    options = recipe.ConversionOptions().with_model_alias("m", version)
    body = json.dumps({"model": "m", "max_tokens": 9, **fields})
    conversation = recipe.MessagesRequest(body).convert(options).conversation
    return recipe.DeepseekV41Encoding().render_conversation(conversation).prompt


TURNS: dict[str, list[Any]] = {
    "one": [USER],
    "two of the user": [USER, user(text("a"), text("b")), USER],
    "mid system": [USER, {"role": "system", "content": "mid"}],
    "first system": [{"role": "system", "content": [text("a"), text("b")]}, USER],
    "ends with the assistant": [USER, assistant(text("pre"))],
    "texts": [USER, assistant(text("x"), text("y")), user(text("a")), USER],
    "thoughts": [USER, assistant(thought("R"), thought("Q"), text("A"), text("B")), USER],
    "late thought": [USER, assistant(thought("R"), text("A"), thought("Z"), text("C")), USER],
    "thought alone": [USER, assistant(thought("R")), USER],
    "call": [USER, assistant(thought("R"), text("A"), call("c", a=1)), user(result("c"))],
    "call and more": [USER, assistant(call("c", a="x")), user(result("c"), text("more"))],
    "bare result": [
        USER,
        assistant(call("c")),
        user({"type": "tool_result", "tool_use_id": "c"}),
    ],
    "parts of a result": [
        USER,
        assistant(call("c")),
        user({**result("c", [text("o1"), text("o2")]), "is_error": True}),
    ],
    "two calls": [
        USER,
        assistant(call("c", n=1), call("d", n=[2.5, None])),
        user(result("d", "D"), result("c", "C")),
        assistant(text("done")),
        USER,
    ],
    "two rounds": [
        USER,
        assistant(call("c")),
        user(result("c", "")),
        assistant(thought("again"), call("c")),
        user(result("c", [])),
    ],
}


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["bare", "tools"])
@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
@pytest.mark.parametrize("system", [None, "S", [text("a"), text("b")]], ids=["none", "S", "ab"])
@pytest.mark.parametrize("name", TURNS)
def test_prompts_are_those_of_the_models_makers(
    name: str, system: Any, thinking: str, tools: list[Any]
) -> None:
    fields: dict[str, Any] = {"messages": TURNS[name], "thinking": {"type": thinking}}
    if system is not None:
        fields["system"] = system
    if tools:
        fields["tools"] = tools
    assert ours(**fields) == theirs(**fields)


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_shows_or_hides_the_tools(choice: str) -> None:
    fields = {"messages": [USER], "tools": TOOLS, "tool_choice": {"type": choice}}
    assert ours(**fields) == theirs(**fields)


def test_a_forced_tool_opens_the_calls_without_thinking() -> None:
    choice = {"type": "tool", "name": "f"}
    fields = {"messages": [USER], "tools": TOOLS, "tool_choice": choice}
    fields["thinking"] = {"type": "disabled"}
    assert ours(**fields) == theirs(**fields)


def test_results_come_first_wherever_they_were_sent() -> None:
    asked = [USER, assistant(call("c"), call("d"))]
    late = [*asked, user(text("more"), result("d", "D")), user(result("c", "C"))]
    first = [*asked, user(result("c", "C"), result("d", "D"), text("more"))]
    assert ours(messages=late, tools=TOOLS) == ours(messages=first, tools=TOOLS)


def test_neighbours_of_the_assistant_are_one_turn() -> None:
    apart = [USER, assistant(thought("R"), text("a")), assistant(text("b"), call("c"))]
    one = [USER, assistant(thought("R"), text("a"), text("b"), call("c"))]
    rest = [user(result("c"))]
    assert ours(messages=[*apart, *rest], tools=TOOLS) == ours(messages=[*one, *rest], tools=TOOLS)
