"""Items to prompts, beside the encoder that DeepSeek published."""

import json
from typing import Any

import deepseek_recipe as recipe
import pytest

from diptych.gateway.chat.preparation import chat_of
from diptych.gateway.responses.request import translate
from diptych.text.chat import render
from diptych.text.markers import spell

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "description": "D", "parameters": {"type": "object"}}
GET = {"type": "function", "name": "get", "description": "g", "parameters": {"type": "object"}}
CRM = {"type": "namespace", "name": "crm", "description": "the crm", "tools": [GET]}


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def thought(*texts: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs", "summary": [], "content": content}


def call(call_id: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    fields = {"name": "f", **fields}
    return {"type": "function_call", "call_id": call_id, "arguments": arguments, **fields}


def result(call_id: str, output: Any = "out") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def ours(**fields: Any) -> str:
    request = translate({"model": "m", **fields}).translation.read()
    return spell(render(chat_of(request)))


def theirs(**fields: Any) -> str:
    version = recipe.ModelVersion.DeepseekV41Flash
    options = recipe.ConversionOptions().with_model_alias("m", version)
    body = json.dumps({"model": "m", **fields})
    conversation = recipe.ResponsesRequest(body).convert(options).conversation
    return recipe.DeepseekV41Encoding().render_conversation(conversation).prompt


SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]}
INPUTS: dict[str, Any] = {
    "text": "hi",
    "empty text": "",
    "parts": [said("user", "a", "b")],
    "no parts": [said("user")],
    "system": [{"role": "system", "content": "S"}, USER],
    "developer": [USER, {"type": "message", "role": "developer", "content": "D"}],
    "ends with the assistant": [USER, {"role": "assistant", "content": "A"}],
    "neighbours": [USER, said("assistant", "A"), said("assistant", "B", "C"), USER],
    "turn": [USER, thought("R", "Q"), said("assistant", "A"), call("c"), result("c")],
    "two thoughts": [USER, thought("R"), thought("Q"), said("assistant", "B"), USER],
    "thought between": [USER, said("assistant", "A"), thought("R"), said("assistant", "B"), USER],
    "thought alone": [USER, thought("R"), USER],
    "summary alone": [USER, SUMMARY, said("assistant", "A"), USER],
    "two calls": [USER, call("c", '{"a": 1}'), call("d"), result("d", "D"), result("c", "C"), USER],
    "two rounds": [USER, call("c"), result("c", ""), thought("R"), call("d"), result("d")],
    "parts of a result": [USER, call("c"), result("c", said("user", "o1", "o2")["content"])],
    "no object": [USER, call("c", "[1]"), result("c")],
    "search": [USER, {"type": "web_search_call", "id": "w", "status": "completed"}],
}


@pytest.mark.parametrize("tools", [[], [TOOL], [CRM, TOOL]], ids=["bare", "tool", "namespace"])
@pytest.mark.parametrize("effort", ["high", "max", "none"])
@pytest.mark.parametrize("instructions", [None, "I"])
@pytest.mark.parametrize("name", INPUTS)
def test_prompts_are_those_of_the_models_makers(
    name: str, instructions: str | None, effort: str, tools: list[Any]
) -> None:
    fields: dict[str, Any] = {"input": INPUTS[name], "reasoning": {"effort": effort}}
    if instructions is not None:
        fields["instructions"] = instructions
    if tools:
        fields["tools"] = tools
    assert ours(**fields) == theirs(**fields)


def test_instructions_alone_are_a_prompt() -> None:
    assert ours(instructions="Be.") == theirs(instructions="Be.")


def test_calls_of_namespaces_are_told_by_both_names() -> None:
    items = [USER, call("c", name="get", namespace="crm"), result("c")]
    assert ours(input=items, tools=[CRM]) == theirs(input=items, tools=[CRM])
    assert 'invoke name="crm::get"' in ours(input=items, tools=[CRM])


def test_a_forced_function_opens_the_calls_without_thinking() -> None:
    fields = {"input": "hi", "tools": [CRM], "reasoning": {"effort": "none"}}
    fields["tool_choice"] = {"type": "function", "name": "crm::get"}
    assert ours(**fields) == theirs(**fields)


def test_a_schema_is_stated() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    fields = {"input": "hi", "text": {"format": schema}}
    assert ours(**fields) == theirs(**fields)


def test_what_stands_between_a_call_and_its_result_is_of_the_same_turn() -> None:
    apart = [USER, thought("R"), call("c"), said("assistant", "A"), call("d")]
    one = [USER, thought("R"), said("assistant", "A"), call("c"), call("d")]
    rest = [result("c"), result("d")]
    assert ours(input=[*apart, *rest], tools=[TOOL]) == ours(input=[*one, *rest], tools=[TOOL])
    late = [USER, call("c"), thought("R"), call("d")]
    early = [USER, thought("R"), call("c"), call("d")]
    assert ours(input=[*late, *rest], tools=[TOOL]) == ours(input=[*early, *rest], tools=[TOOL])


def test_an_earlier_refusal_is_text() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert ours(input=[USER, refusal, USER]) == ours(input=[USER, said("assistant", "no"), USER])
