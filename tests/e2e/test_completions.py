"""The official OpenAI client asks for raw text of the whole platform, each station a process."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from diptych.testing.platform import Platform

MODEL = "tiny-noise"


@pytest.fixture
def client(running: Platform) -> Iterator[openai.OpenAI]:
    base_url = f"{running.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="anything", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def http(running: Platform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.base_url, timeout=60) as http:
        yield http


def tokens_of(http: httpx.Client, **body: Any) -> list[int]:
    ids: list[int] = http.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    return ids


def test_a_stream_gives_the_text_that_a_whole_answer_has(client: openai.OpenAI) -> None:
    wish: dict[str, Any] = {
        "model": MODEL,
        "prompt": ["Once upon", "a time"],
        "n": 2,
        "max_tokens": 12,
        "seed": 5,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**wish)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 4 * 12
    texts = dict.fromkeys(range(4), "")
    finishes: list[str] = []
    usage = None
    chunks = client.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert finishes == ["length"] * 4
    assert usage is not None
    assert usage.completion_tokens == 4 * 12


def test_a_hole_is_filled(client: openai.OpenAI, http: httpx.Client) -> None:
    reply = client.completions.create(
        model=MODEL, prompt="def add(a, b):\n", suffix="\n\nprint(add(1, 2))", max_tokens=4
    )
    assert reply.usage is not None
    plain = {"add_special_tokens": False}
    parts = [tokens_of(http, prompt=text, **plain) for text in ("def add(a, b):\n",)]
    parts.append(tokens_of(http, prompt="\n\nprint(add(1, 2))", **plain))
    assert reply.usage.prompt_tokens == sum(map(len, parts)) + 4
    assert reply.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_t77_texts_are_scored_as_evaluation_harnesses_score_them(
    client: openai.OpenAI, http: httpx.Client, max_tokens: int
) -> None:
    context = tokens_of(http, prompt="Question: 1 + 1 = ?\nAnswer:")
    said = client.completions.create(
        model=MODEL,
        prompt=context,
        max_tokens=8,
        temperature=0,
        logprobs=1,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    (best,) = said.choices
    assert best.logprobs is not None and best.logprobs.token_logprobs is not None
    likely = [*context, *best.model_dump()["token_ids"]]
    unlikely = [*context, *tokens_of(http, prompt="{{{{", add_special_tokens=False)]
    scored = client.completions.create(
        model=MODEL,
        prompt=[likely, unlikely],
        max_tokens=max_tokens,
        temperature=0,
        logprobs=1,
        echo=True,
        seed=1234,
    )
    sums, is_greedy = [], []
    for choice, ids in zip(scored.choices, (likely, unlikely), strict=True):
        lists = choice.logprobs
        assert lists is not None and lists.tokens is not None
        assert lists.token_logprobs is not None and lists.top_logprobs is not None
        assert len(lists.tokens) == len(ids) + max_tokens
        assert lists.token_logprobs[0] is None
        end = len(ids)
        values = lists.token_logprobs[len(context) : end]
        sums.append(sum(values) / len(values))
        tops = lists.top_logprobs[len(context) : end]
        is_greedy.append(all(v == max(t.values()) for v, t in zip(values, tops, strict=True)))
    assert is_greedy == [True, False]
    assert sums[0] > sums[1]
    first = scored.choices[0].logprobs
    assert first is not None and first.token_logprobs is not None
    found = first.token_logprobs[len(context) : len(likely)]
    assert found == pytest.approx(best.logprobs.token_logprobs, abs=0.02)


def test_the_ids_of_a_conversation_are_those_that_it_is_billed_for(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    messages: Any = [{"role": "user", "content": "Hello <｜User｜> 🦄"}]
    reply = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert reply.usage is not None
    ids = tokens_of(http, messages=messages)
    assert len(ids) == reply.usage.prompt_tokens
    text = http.post("/detokenize", json={"tokens": ids}).raise_for_status().json()["prompt"]
    assert text.endswith("<｜User｜>Hello <｜User｜> 🦄<｜Assistant｜><think>")


@pytest.mark.parametrize("stream", [False, True])
def test_wishes_that_leave_no_token_are_the_callers_mistake(
    client: openai.OpenAI, http: httpx.Client, stream: bool
) -> None:
    (b,) = tokens_of(http, prompt="b", add_special_tokens=False)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(
            model=MODEL,
            prompt="Say a",
            stream=stream,
            extra_body={"regex": "a+", "allowed_token_ids": [b]},
        )
    assert caught.value.code == "conflicting_parameters"
