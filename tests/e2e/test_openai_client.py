"""The official OpenAI client against the whole platform, each station a process."""

from collections.abc import Iterator

import openai
import pytest

from diptych.testing.platform import Platform, platform

MODEL = "tiny-noise"
USER = [{"role": "user", "content": "Hello, who are you?"}]
ANSWER = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("openai")) as running:
        yield running


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
        ({"logprobs": True}, "unsupported_parameter", "logprobs"),
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
