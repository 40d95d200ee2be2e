"""The official OpenAI client against the whole platform, each station a process."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from diptych.testing.platform import Platform

MODEL = "tiny-noise"
BLOCK = 128
KEEP = 44  # window and margin: so many last tokens are computed whatever is cached
USER = [{"role": "user", "content": "Hello, who are you?"}]
ANSWER = {"thinking": {"type": "disabled"}}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
COUNT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}}
SCHEMAS: dict[str, Any] = {"greet": SCHEMA, "count": COUNT}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]


def as_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.fixture
def client(running: Platform) -> Iterator[openai.OpenAI]:
    base_url = f"{running.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="anything", max_retries=0, timeout=60) as client:
        yield client


def test_it_lists_and_finds_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_it_reads_an_answer_and_its_usage(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=12, seed=1, extra_body={**ANSWER, "ignore_eos": True}
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_k14_only_what_was_not_computed_again_counts_as_cached(client: openai.OpenAI) -> None:
    """router#193: what decode fetches of a prompt is no hit; a repeat finds what it may adopt."""

    def ask(number: int) -> tuple[int, int]:
        text = f"{number}: " + " ".join(f"word {i}" for i in range(100))
        reply = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": text}],
            max_tokens=4,
            extra_body=ANSWER | {"cache_salt": "k14"},
        )
        assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
        return reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens or 0

    for number in (1, 2):
        prompt_tokens, cached = ask(number)
        assert prompt_tokens > 300 and cached == 0
        assert ask(number) == (prompt_tokens, (prompt_tokens - KEEP) // BLOCK * BLOCK)


def test_it_streams_the_same_answer_and_reads_usage_last(client: openai.OpenAI) -> None:
    extra = {**ANSWER, "ignore_eos": True}
    wish = {"model": MODEL, "messages": USER, "max_tokens": 24, "seed": 5, "extra_body": extra}
    whole = client.chat.completions.create(**wish)
    chunks = list(
        client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    )
    *spoken, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in spoken)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].delta.role for chunk in spoken].count("assistant") == 1
    assert [c.choices[0].finish_reason for c in spoken if c.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage == whole.usage
    assert len(spoken) > 5


def test_it_streams_reasoning_apart(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, stream=True, extra_body={"ignore_eos": True}
    )
    opening, *rest = (chunk.choices[0].delta for chunk in stream)
    assert opening.content is None
    assert opening.model_extra == {"reasoning_content": ""}
    assert all("reasoning_content" in (delta.model_extra or {}) for delta in rest[:-1])


def test_choices_come_together_and_greedy_ones_are_equal(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=8, n=3, temperature=0, extra_body=ANSWER
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) == 1


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        reply = client.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=16, seed=seed, extra_body=ANSWER
        )
        return reply.choices[0].message.content

    assert ask(3) == ask(3) != ask(4)


def test_a_stop_string_cuts_the_answer_before_it(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "messages": USER, "max_tokens": 40, "seed": 9}
    extra = {**ANSWER, "ignore_eos": True}
    text = client.chat.completions.create(**wish, extra_body=extra).choices[0].message.content
    assert text is not None
    stop = text[len(text) // 2 :][:3]
    reply = client.chat.completions.create(**wish, stop=[stop], extra_body=extra)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == text[: text.index(stop)]


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_a_budget_ends_the_reasoning_and_the_answer_follows(
    client: openai.OpenAI, budget: int
) -> None:
    for seed in range(3):
        reply = client.chat.completions.create(
            model=MODEL,
            messages=USER,
            max_tokens=60,
            seed=seed,
            logit_bias={str(end): -100 for end in (1, 945)},  # the end, and that of reasoning
            extra_body={
                "regex": "[0-9]{2}",
                "thinking_token_budget": budget,
                "return_token_ids": True,
            },
        )
        (choice,) = reply.choices
        assert re.fullmatch("[0-9]{2}", choice.message.content or "")
        assert choice.finish_reason == "stop"
        ids = (choice.model_extra or {})["token_ids"]
        assert ids.index(945) == budget
        assert reply.usage is not None and reply.usage.completion_tokens_details is not None
        assert (reply.usage.completion_tokens_details.reasoning_tokens or 0) <= budget


def test_reasoning_that_is_not_separate_is_streamed_in_the_content(client: openai.OpenAI) -> None:
    extra = {"separate_reasoning": False, "thinking_token_budget": 6, "ignore_eos": True}
    wish = {"model": MODEL, "messages": USER, "max_tokens": 16, "seed": 4, "extra_body": extra}
    whole = client.chat.completions.create(**wish).choices[0].message.content or ""
    assert whole.count("</think>") == 1 and not whole.startswith("</think>")
    chunks = client.chat.completions.create(**wish, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_a_client_may_wait_less_than_we_do(client: openai.OpenAI, running: Platform) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=USER,
            max_tokens=2000,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-s": "0.3"},
        )
    assert (caught.value.status_code, caught.value.code) == (504, "upstream_timeout")
    running.wait_for_baseline(limit_s=5)


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_an_answer_in_json_satisfies_its_schema(client: openai.OpenAI, thinking: str) -> None:
    found = 0
    for seed in range(3):
        wish = {"model": MODEL, "messages": USER, "max_tokens": 150, "seed": seed}
        extra = {"thinking": {"type": thinking}, "logit_bias": {"945": 8}}  # </think>
        wish |= {"response_format": as_format(SCHEMA), "extra_body": extra}
        (choice,) = client.chat.completions.create(**wish).choices
        chunks = list(client.chat.completions.create(**wish, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == choice.message.content
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(text), SCHEMA)
            found += 1
    assert found >= 2


def test_every_choice_keeps_to_a_pattern(client: openai.OpenAI) -> None:
    extra = {**ANSWER, "structured_outputs": {"regex": "(ja|nein)[!?]{2}"}}
    reply = client.chat.completions.create(model=MODEL, messages=USER, n=4, extra_body=extra)
    for choice in reply.choices:
        assert re.fullmatch("(ja|nein)[!?]{2}", choice.message.content or "")
        assert choice.finish_reason == "stop"


def calls_of(chunks: list[ChatCompletionChunk]) -> tuple[list[tuple[str, str]], str | None]:
    """Names and arguments of a stream's calls, and its finish."""
    made: list[tuple[str, str]] = []
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            if call.id is not None:
                assert (call.index, call.type) == (len(made), "function")
                made.append((call.function.name or "", ""))
            name, arguments = made[call.index]
            made[call.index] = (name, arguments + (call.function.arguments or ""))
    return made, chunks[-1].choices[0].finish_reason


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"count", "greet"}),
        ({"type": "function", "function": {"name": "greet"}}, {"greet"}),
    ],
)
def test_a_forced_call_satisfies_its_schema(
    client: openai.OpenAI, choice: Any, names: set[str], thinking: str
) -> None:
    for seed in range(4):  # until one has room for its call
        wish = {"model": MODEL, "messages": USER, "max_tokens": 250, "seed": seed}
        wish |= {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        wish |= {"extra_body": {"thinking": {"type": thinking}, "logit_bias": {"945": 8}}}
        (answer,) = client.chat.completions.create(**wish).choices
        assert not answer.message.content
        whole = [(c.function.name, c.function.arguments) for c in answer.message.tool_calls or []]
        chunks = list(client.chat.completions.create(**wish, stream=True))
        assert calls_of(chunks) == (whole, answer.finish_reason)
        if answer.finish_reason == "tool_calls":
            ((name, arguments),) = whole
            assert name in names
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            return
        assert answer.finish_reason == "length"
    pytest.fail("no call was completed")


def test_an_answer_is_a_document_or_calls_if_both_are_asked_for(client: openai.OpenAI) -> None:
    found = 0
    for seed in range(3):
        wish = {"model": MODEL, "messages": USER, "max_tokens": 200, "seed": seed, "tools": TOOLS}
        wish |= {"response_format": as_format(SCHEMA), "extra_body": ANSWER}
        wish |= {"parallel_tool_calls": False}
        (answer,) = client.chat.completions.create(**wish).choices
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.message.content or ""), SCHEMA)
            found += 1
        elif answer.finish_reason == "tool_calls":
            (call,) = answer.message.tool_calls or []
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            found += 1
    assert found >= 2


def test_a_conversation_goes_on_from_the_result_of_a_call(client: openai.OpenAI) -> None:
    wish = {"model": MODEL, "max_tokens": 250, "tools": TOOLS, "extra_body": ANSWER, "seed": 1}
    choice = {"type": "function", "function": {"name": "count"}}
    reply = client.chat.completions.create(**wish, messages=USER, tool_choice=choice)
    said = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert said.tool_calls
    results = [{"role": "tool", "tool_call_id": c.id, "content": "done"} for c in said.tool_calls]
    messages = [*USER, said, *results]
    reply = client.chat.completions.create(**wish | {"max_tokens": 8}, messages=messages)
    assert reply.choices[0].finish_reason


def test_log_probabilities_cover_every_token_from_the_first_to_the_last(
    client: openai.OpenAI,
) -> None:
    extra = {**ANSWER, "ignore_eos": True, "return_token_ids": True}
    wish = {"model": MODEL, "messages": USER, "max_tokens": 20, "temperature": 0}
    wish |= {"logprobs": True, "top_logprobs": 3, "extra_body": extra}
    (choice,) = client.chat.completions.create(**wish).choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    entries = choice.logprobs.content
    said = b"".join(bytes(entry.bytes or []) for entry in entries).decode(errors="replace")
    assert said == choice.message.content  # noise is not always UTF-8
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs) < 0
    streamed = [
        entry
        for chunk in client.chat.completions.create(**wish, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == entries


def test_log_probabilities_of_the_prompt_come_whole_and_streamed(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "Who are you, and what can you do? " * 20}]
    wish = {"model": MODEL, "messages": question, "max_tokens": 3, "temperature": 0}
    wish["extra_body"] = {**ANSWER, "prompt_logprobs": 2}
    reply = client.chat.completions.create(**wish)
    assert reply.model_extra is not None and reply.usage is not None
    first, *rest = found = reply.model_extra["prompt_logprobs"]
    assert first is None
    assert len(found) == reply.usage.prompt_tokens > 100
    own = [next(iter(entry.values())) for entry in rest]
    assert -math.inf < sum(each["logprob"] for each in own) < 0
    assert "Who are you" in "".join(each["decoded_token"] for each in own)
    opening, *others = client.chat.completions.create(**wish, stream=True)
    assert (opening.model_extra or {})["prompt_logprobs"] == found
    assert not any("prompt_logprobs" in (chunk.model_extra or {}) for chunk in others)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nothing", messages=USER)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "gpt-nothing" in caught.value.message


def test_malformed_json_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(
            "/chat/completions",
            content=b'{"model": "tiny-noise", ',
            cast_to=object,
            options={"headers": {"content-type": "application/json"}},
        )
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_messages", "messages"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 100_000}, "context_length_exceeded", "messages"),
        (
            {"messages": [{"role": "user", "content": "word " * 6000}]},
            "context_length_exceeded",
            "messages",
        ),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_logprobs": 2}, "conflicting_parameters", "top_logprobs"),
        ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"tool_choice": "required"}, "invalid_tools", "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "invalid_tools", "tools[0].type"),
        (
            {"response_format": as_format({"type": "array", "uniqueItems": True})},
            "invalid_schema",
            "response_format.json_schema.schema.uniqueItems",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_bad_request_that_names_the_field(
    client: openai.OpenAI, fields: dict[str, object], code: str, param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **{"model": MODEL, "messages": USER, "stream": stream, **fields}
        )
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id is not None


def test_streams_that_are_left_end_everywhere(client: openai.OpenAI, running: Platform) -> None:
    for seed in range(6):
        stream = client.chat.completions.create(
            model=MODEL,
            messages=USER,
            max_tokens=2000,
            seed=seed,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(seed):
            next(stream)
        stream.close()
    running.wait_for_baseline(limit_s=5)


def test_nothing_is_left_when_all_have_been_served(running: Platform) -> None:
    running.wait_for_baseline()
