"""The official clients of Responses and Messages against the whole platform, one for both."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from diptych.testing.platform import Platform

MODEL = "tiny-noise"
TEXT = "Hello, who are you?"
USER: Any = [{"role": "user", "content": TEXT}]
COUNT: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
PLAIN = {"ignore_eos": True}
EARLY_END = {"ignore_eos": True, "logit_bias": {"945": 8}}  # </think>: noise would think for long
ROOM = 120  # tokens in which nearly every call and document is completed


class Counted(BaseModel):
    n: int = Field(ge=0, le=99)


# Responses


@pytest.fixture
def client(running: Platform) -> Iterator[openai.OpenAI]:
    base_url = f"{running.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="anything", max_retries=0, timeout=60) as client:
        yield client


def asking(**fields: Any) -> Any:
    """Greedy and without thinking, so that two answers to one wish are equal."""
    common = {"model": MODEL, "input": TEXT, "temperature": 0, "max_output_tokens": 16}
    return {**common, "reasoning": {"effort": "none"}, **fields}


def bare(items: Any) -> list[Any]:
    """Without ids, which no two answers share."""
    return [item.model_dump(exclude={"id", "call_id"}) for item in items]


def test_a_response_is_read_and_streamed_the_same(client: openai.OpenAI) -> None:
    asked = asking(extra_body=PLAIN)
    response = client.responses.create(**asked)
    assert (response.status, response.model) == ("incomplete", MODEL)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    assert response.usage.total_tokens == response.usage.input_tokens + 16
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text
    assert len(deltas) > 5
    last = events[-1]
    assert last.type == "response.incomplete"
    assert bare(last.response.output) == bare(response.output)


def test_reasoning_of_a_response_is_read_and_sent_back(client: openai.OpenAI) -> None:
    asked = asking(max_output_tokens=30, reasoning={"effort": "low"}, extra_body=EARLY_END)
    response = client.responses.create(**asked, include=["reasoning.encrypted_content"])
    first = response.output[0]
    assert first.type == "reasoning"
    assert first.content
    with client.responses.stream(**asked) as stream:
        kinds = {event.type for event in stream}
    assert "response.reasoning_text.delta" in kinds
    history: Any = [*USER, *[item.to_dict() for item in response.output], *USER]
    reply = client.responses.create(**asking(input=history, max_output_tokens=2))
    assert reply.usage is not None


def test_a_forced_function_is_called_and_its_result_goes_on(client: openai.OpenAI) -> None:
    count = {"type": "function", "name": "count", "parameters": COUNT, "strict": True}
    crm = {"type": "namespace", "name": "crm", "description": "the crm", "tools": [count]}
    for seed in range(4):  # until one has room for its call
        asked = asking(tools=[crm], tool_choice="required", parallel_tool_calls=False)
        asked |= {"max_output_tokens": ROOM, "temperature": 1, "extra_body": {"seed": seed}}
        response = client.responses.create(**asked)
        last = list(client.responses.create(**asked, stream=True))[-1]
        assert last.type in ("response.completed", "response.incomplete")
        assert bare(last.response.output) == bare(response.output)
        if response.status == "completed":
            break
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.namespace, call.name) == ("crm", "count")
    jsonschema.validate(json.loads(call.arguments), COUNT)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    history: Any = [*USER, call.to_dict(), result]
    reply = client.responses.create(**asking(input=history, tools=[crm], max_output_tokens=2))
    assert reply.usage is not None


def test_a_structured_response_is_parsed_whole_and_streamed(client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "name": "counted", "schema": COUNT, "strict": True}
    for seed in range(6):
        asked = asking(max_output_tokens=ROOM, temperature=1, extra_body={"seed": seed})
        if client.responses.create(**asked, text={"format": schema}).status != "completed":
            continue  # the client's own parser would stumble over half a document
        parsed = client.responses.parse(**asked, text_format=Counted).output_parsed
        assert parsed is not None
        with client.responses.stream(**asked, text_format=Counted) as stream:
            assert stream.get_final_response().output_parsed == parsed
        return
    pytest.fail("no document was completed")


def test_log_probabilities_of_a_response_cover_its_text(client: openai.OpenAI) -> None:
    asked = asking(top_logprobs=3, include=["message.output_text.logprobs"], extra_body=PLAIN)
    (item,) = client.responses.create(**asked).output
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    said = b"".join(bytes(entry.bytes) for entry in part.logprobs).decode(errors="replace")
    assert said == part.text  # noise is not always UTF-8
    assert all(len(entry.top_logprobs) == 3 for entry in part.logprobs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": []}, "invalid_messages", "input"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "context_length_exceeded", "input"),
        ({"previous_response_id": "resp_x"}, "unsupported_parameter", "previous_response_id"),
        ({"tools": [{"type": "file_search"}]}, "invalid_tools", "tools[0]"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
    ],
)
def test_what_is_wrong_is_a_bad_request_that_names_the_field(
    client: openai.OpenAI, fields: Any, code: str, param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asking(**fields), stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id is not None


def test_an_earlier_response_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve("resp_1")
    assert caught.value.code == "response_not_found"


# Messages


@pytest.fixture(params=["", "/anthropic"], ids=["root", "deepseek"])
def either(running: Platform, request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    with opened(running, request.param) as client:
        yield client


@pytest.fixture
def claude(running: Platform) -> Iterator[anthropic.Anthropic]:
    with opened(running) as client:
        yield client


def opened(running: Platform, base: str = "") -> anthropic.Anthropic:
    url = running.base_url + base
    return anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60)


def wish(extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Greedy and without thinking; this client has no field for a temperature."""
    body = {"temperature": 0, **(extra or {})}
    common = {"model": MODEL, "max_tokens": 16, "messages": USER, "extra_body": body}
    return {**common, "thinking": {"type": "disabled"}, **fields}


def blocks(message: anthropic.types.Message) -> list[Any]:
    """Without ids and signatures, which no two answers share."""
    return [block.model_dump(exclude={"id", "signature"}) for block in message.content]


def test_a_message_is_read_and_streamed_the_same(either: anthropic.Anthropic) -> None:
    asked = wish(PLAIN)
    message = either.messages.create(**asked)
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 16
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    with either.messages.stream(**asked) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == block.text
    assert blocks(final) == blocks(message)
    assert (final.stop_reason, final.usage) == (message.stop_reason, message.usage)
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


def test_counted_tokens_are_those_that_the_answer_costs(claude: anthropic.Anthropic) -> None:
    tools = [{"name": "count", "input_schema": COUNT, "strict": True}]
    prompt: Any = {"system": "Be brief.", "tools": tools, "messages": USER}
    prompt["thinking"] = {"type": "disabled"}
    counted = claude.messages.count_tokens(model=MODEL, **prompt)
    usage = claude.messages.create(**wish(**prompt)).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_thinking_is_read_with_its_signature_and_sent_back(claude: anthropic.Anthropic) -> None:
    asked = wish(EARLY_END, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=30)
    message = claude.messages.create(**asked)
    assert message.content[0].type == "thinking"
    assert message.content[0].signature
    with claude.messages.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert {"thinking", "signature"} <= set(events)
    assert blocks(final) == blocks(message)
    history = [*USER, {"role": "assistant", "content": message.content}, *USER]
    assert claude.messages.create(**wish(messages=history, max_tokens=2)).stop_reason is not None


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    (block,) = claude.messages.create(**wish(PLAIN)).content
    assert block.type == "text"
    stop = block.text[len(block.text) // 2 :][:3]
    message = claude.messages.create(**wish(PLAIN, stop_sequences=[stop]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_a_forced_tool_is_used_and_its_result_goes_on(claude: anthropic.Anthropic) -> None:
    tools = [{"name": "count", "input_schema": COUNT, "strict": True}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    for seed in range(4):  # until one has room for its call
        asked = wish({"seed": seed, "temperature": 1}, tools=tools, tool_choice=choice)
        message = claude.messages.create(**asked | {"max_tokens": ROOM})
        with claude.messages.stream(**asked | {"max_tokens": ROOM}) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == message.stop_reason
        if message.stop_reason == "tool_use":
            break
    assert blocks(final) == blocks(message)
    (call,) = message.content
    assert call.type == "tool_use"
    jsonschema.validate(call.input, COUNT)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    history: Any = [*USER, {"role": "assistant", "content": message.content}]
    history.append({"role": "user", "content": [result]})
    reply = claude.messages.create(**wish(messages=history, tools=tools, max_tokens=2))
    assert reply.usage.output_tokens


class Verdict(BaseModel):
    is_true: bool  # this client takes bounds of numbers out of schemas


def test_a_structured_message_is_parsed(claude: anthropic.Anthropic) -> None:
    config = {"format": {"type": "json_schema", "schema": anthropic.transform_schema(Verdict)}}
    for seed in range(4):
        asked = wish({"seed": seed, "temperature": 1}, max_tokens=ROOM)
        message = claude.messages.create(**asked, output_config=config)
        if message.stop_reason == "end_turn":
            parsed = claude.messages.parse(**asked, output_format=Verdict)
            assert isinstance(parsed.parsed_output, Verdict)
            return
    pytest.fail("no document was completed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"model": "claude-nothing"}, anthropic.NotFoundError, "claude-nothing"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"max_tokens": 100_000}, anthropic.BadRequestError, "maximum context length"),
        ({"extra": {"temperature": 3}}, anthropic.BadRequestError, "temperature"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool_choice"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            anthropic.BadRequestError,
            "messages[0].content[0]",
        ),
    ],
)
def test_t92_what_is_wrong_is_an_exception_of_its_class(
    claude: anthropic.Anthropic, fields: Any, kind: type[Exception], said: str, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        claude.messages.create(**wish(**fields), stream=stream)
    assert isinstance(caught.value, anthropic.APIStatusError)
    assert said in caught.value.message
    assert caught.value.request_id is not None
    body: Any = caught.value.body
    assert body["error"]["type"] in ("invalid_request_error", "not_found_error")


def test_streams_that_are_left_end_everywhere(
    client: openai.OpenAI, claude: anthropic.Anthropic, running: Platform
) -> None:
    for count in range(3):
        streams = (
            claude.messages.create(**wish(PLAIN, max_tokens=2000), stream=True),
            client.responses.create(
                **asking(max_output_tokens=2000, extra_body=PLAIN), stream=True
            ),
        )
        for stream in streams:
            for _ in range(count):
                next(iter(stream))
            stream.close()
    running.wait_for_baseline(limit_s=5)
