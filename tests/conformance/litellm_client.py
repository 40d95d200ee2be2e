"""litellm, by both of the APIs that it knows."""

import json
from typing import Any

import litellm
from checks import ANSWER, KEY, MODEL, QUESTION, SCHEMA, TOOL, URL, main

MESSAGES = [{"role": "user", "content": QUESTION}]
ONE_CALL: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 400,
}
OPENAI: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
ANTHROPIC: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY}


def ask(via: dict[str, Any] = OPENAI, **fields: Any) -> Any:
    wish = {"messages": MESSAGES, "max_tokens": 64, "num_retries": 0, "timeout": 60, **fields}
    if via is OPENAI:
        wish.setdefault("extra_body", ANSWER)
    else:
        wish |= ANSWER | {"allowed_openai_params": ["thinking", "parallel_tool_calls"]}
    return litellm.completion(**via, **wish)


def check_a_whole_answer_has_text_and_usage() -> None:
    reply = ask(seed=1)
    assert reply.choices[0].message.content is not None
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def check_a_stream_is_the_whole_answer() -> None:
    whole = ask(seed=2)
    chunks = list(ask(seed=2, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    assert built.usage.completion_tokens == whole.usage.completion_tokens


def check_reasoning_comes_apart() -> None:
    reply = ask(seed=3, extra_body={"thinking": {"type": "enabled"}})
    assert reply.choices[0].message.reasoning_content


def check_a_forced_tool_is_called() -> None:
    for stream in (False, True):
        reply = ask(seed=4, stream=stream, **ONE_CALL)
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=MESSAGES)
        (call,) = reply.choices[0].message.tool_calls[:1]
        assert call.function.name == "get_weather"
        expect_arguments(json.loads(call.function.arguments))
        assert reply.choices[0].finish_reason == "tool_calls"


def check_a_tool_result_is_answered() -> None:
    reply = ask(seed=5, **ONE_CALL)
    message = reply.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
        for call in message.tool_calls
    ]
    again = ask(messages=[*MESSAGES, message.model_dump(exclude_none=True), *results], tools=[TOOL])
    assert again.choices[0].finish_reason in ("stop", "length", "tool_calls")


def check_a_schema_is_kept() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}
    reply = ask(seed=6, response_format=form, max_tokens=1500)
    expect_arguments(json.loads(reply.choices[0].message.content))


def check_errors_have_their_class() -> None:
    try:
        litellm.completion(**OPENAI | {"model": "openai/nobody"}, messages=MESSAGES, num_retries=0)
    except litellm.exceptions.NotFoundError as error:
        assert "does not exist" in str(error)
    else:
        raise AssertionError("an unknown model was answered")


def check_anthropic_whole_and_streamed() -> None:
    reply = ask(ANTHROPIC)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    chunks = list(ask(ANTHROPIC, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def check_anthropic_tools() -> None:
    for stream in (False, True):
        reply = ask(ANTHROPIC, stream=stream, **ONE_CALL)
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=MESSAGES)
        call = reply.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather"
        expect_arguments(json.loads(call.function.arguments))


def expect_arguments(given: dict[str, Any]) -> None:
    assert given.keys() == {"city", "days"} and 1 <= given["days"] <= 9


if __name__ == "__main__":
    main()
