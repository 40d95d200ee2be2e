"""What a newcomer sees first: the bundled model answers in sentences and calls tools."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from diptych.supervisor.checkpoint import EMBEDDED_MODEL
from diptych.testing.platform import platform

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with (
        platform(tmp_path_factory.mktemp("bundled"), bundled=True) as running,
        openai.OpenAI(base_url=f"{running.base_url}/v1", api_key="any", timeout=60) as client,
    ):
        yield client


def ask(client: openai.OpenAI, question: str, *, thinking: str, **fields: Any) -> Any:
    reply = client.chat.completions.create(
        model=EMBEDDED_MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=120,
        temperature=0,
        extra_body={"thinking": {"type": thinking}},
        **fields,
    )
    return reply.choices[0]


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_a_question_gets_a_sentence_about_it(client: openai.OpenAI, thinking: str) -> None:
    choice = ask(client, "Why is the sky blue?", thinking=thinking)
    assert choice.finish_reason == "stop"
    assert "blue" in choice.message.content
    assert choice.message.content.endswith(".")
    said = choice.message.model_extra or {}
    assert bool(said.get("reasoning_content")) == (thinking == "enabled")


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_a_question_for_a_tool_gets_a_valid_call(client: openai.OpenAI, thinking: str) -> None:
    choice = ask(client, "What is the weather in Paris?", thinking=thinking, tools=[WEATHER])
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
