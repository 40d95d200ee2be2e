"""Log-probabilities: one entry for each token that is shown, streamed and whole."""

from typing import Any

import pytest

from diptych.core.step import Logprob
from diptych.gateway.logprobs import PromptLogprobs, readable
from diptych.text.markers import Marker

END = Marker.END_THINK
EOS = Marker.EOS


def entries(events: list[Any], field: str) -> list[Any]:
    found = []
    for event in events[:-1]:
        for choice in event["choices"]:
            for entry in (choice["logprobs"] or {}).get(field) or []:
                found.append(entry)
    return found


async def test_nobody_gets_what_nobody_asked_for(serve: Any) -> None:
    site = serve("Hello", EOS)
    assert (await site.ask()).json()["choices"][0]["logprobs"] is None
    events = await site.events(logprobs=False)
    assert all(choice["logprobs"] is None for e in events[:-1] for choice in e["choices"])
    assert site.hops.generations[0].sampling.logprobs is None


async def test_t73_each_token_that_is_shown_has_one_entry(serve: Any) -> None:
    site = serve("Hello", " you", EOS)
    body = (await site.ask(logprobs=True, top_logprobs=2)).json()
    assert site.hops.generations[0].sampling.logprobs == 2
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs.keys() == {"content", "refusal"} and logprobs["refusal"] is None
    tokenizer, ids = site.served.tokenizer, site.hops.output.token_ids[:-1]
    assert [entry["token"] for entry in logprobs["content"]] == [
        tokenizer.token_bytes(token).decode() for token in ids
    ]
    joined = b"".join(bytes(entry["bytes"]) for entry in logprobs["content"])
    assert joined.decode() == body["choices"][0]["message"]["content"] == "Hello you"
    for entry, token in zip(logprobs["content"], ids, strict=True):
        assert entry["logprob"] == -0.5
        first, second = entry["top_logprobs"]
        assert first == {key: entry[key] for key in ("token", "logprob", "bytes")}
        assert second["bytes"] == list(tokenizer.spelling(token + 1))
        assert second["logprob"] == -9999.0  # JSON has no minus infinity


async def test_t74_without_alternatives_there_is_the_token_alone(serve: Any) -> None:
    site = serve("x", EOS, num_top=0)
    for wish in ({}, {"top_logprobs": 0}):
        body = (await site.ask(logprobs=True, **wish)).json()
        (entry,) = body["choices"][0]["logprobs"]["content"]
        assert entry["top_logprobs"] == []
        assert site.hops.generations[-1].sampling.logprobs == 0


async def test_reasoning_has_entries_of_its_own_and_markers_none(serve: Any) -> None:
    site = serve("Need it.", END, "\n\nYes.", EOS)
    wish = {"thinking": {"type": "enabled"}, "logprobs": True}
    logprobs = (await site.ask(**wish)).json()["choices"][0]["logprobs"]
    texts = {f: "".join(e["token"] for e in logprobs[f]) for f in ("reasoning_content", "content")}
    assert texts == {"reasoning_content": "Need it.", "content": "Yes."}
    hidden = await site.ask(**wish, include_reasoning=False)
    logprobs = hidden.json()["choices"][0]["logprobs"]
    assert "reasoning_content" not in logprobs
    assert "".join(entry["token"] for entry in logprobs["content"]) == "Yes."


@pytest.mark.parametrize("tokens_a_step", [1, 3, 50])
async def test_t76_a_stream_tells_the_entries_with_their_text(
    serve: Any, tokens_a_step: int
) -> None:
    segments = ("Need\n\nit.", END, "\nDu 🦄, ja", EOS)
    site = serve(*segments, tokens_a_step=tokens_a_step)
    wish = {"thinking": {"type": "enabled"}, "logprobs": True, "top_logprobs": 1}
    whole = (await site.ask(**wish)).json()["choices"][0]["logprobs"]
    events = await site.events(**wish)
    for field in ("content", "reasoning_content"):
        assert entries(events, field) == whole[field]
    for event in events[:-1]:
        (choice,) = event["choices"]
        text = (choice["delta"].get("content") or "") + (
            choice["delta"].get("reasoning_content") or ""
        )
        assert (choice["logprobs"] is not None) == bool(text)
        if tokens_a_step == 1 and text:
            told = choice["logprobs"]["content"] + choice["logprobs"]["reasoning_content"]
            assert b"".join(bytes(entry["bytes"]) for entry in told).decode() == text


async def test_a_stop_string_takes_its_entries_along(serve: Any) -> None:
    site = serve("abc", "\n", "x", "y", "z", EOS)
    for fields in ({}, {"stream": True}):
        reply = await site.ask(logprobs=True, stop="\nxy", **fields)
        if not fields:
            tokens = [e["token"] for e in reply.json()["choices"][0]["logprobs"]["content"]]
            assert "".join(tokens) == "abc"
    events = await site.events(logprobs=True, stop="\nxy")
    assert "".join(entry["token"] for entry in entries(events, "content")) == "abc"


def test_t75_what_is_no_text_by_itself_is_written_byte_by_byte() -> None:
    assert readable("ä\n".encode()) == "ä\n"
    assert readable(b"\xf0\x9f") == "\\xf0\\x9f"
    assert readable(b"") == ""


async def test_a_prompt_has_them_for_every_token_but_the_first(serve: Any) -> None:
    site = serve("Hello", EOS)
    for fields in ({}, {"n": 3}):
        body = (await site.ask(prompt_logprobs=2, **fields)).json()
        generation = site.hops.generations[0]
        assert generation.sampling.prompt_logprobs == 2
        first, *rest = body["prompt_logprobs"]
        assert first is None
        assert len(rest) == body["usage"]["prompt_tokens"] - 1
        for token, entry in zip(generation.prompt[1:], rest, strict=True):
            spelt = [readable(site.served.tokenizer.spelling(each)) for each in (token, token + 1)]
            assert list(entry.items()) == [
                (str(token), {"logprob": -0.5, "rank": 1, "decoded_token": spelt[0]}),
                (str(token + 1), {"logprob": -9999.0, "rank": 2, "decoded_token": spelt[1]}),
            ]
    assert "prompt_logprobs" not in (await site.ask()).json()


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_tells_of_the_prompt_when_its_first_choice_opens(serve: Any, n: int) -> None:
    site = serve("Hello", " you", EOS)
    whole = (await site.ask(prompt_logprobs=0)).json()["prompt_logprobs"]
    events = await site.events(prompt_logprobs=0, n=n)
    (telling,) = [e for e in events[:-1] if "prompt_logprobs" in e]
    assert telling["prompt_logprobs"] == whole
    (choice,) = telling["choices"]
    assert (choice["index"], choice["delta"]["role"]) == (0, "assistant")


async def test_more_of_a_prompt_than_fits_a_message_is_refused(serve: Any) -> None:
    site = serve("Hello", EOS)
    messages = [{"role": "user", "content": "abc " * 120}]
    wish = {"messages": messages, "max_tokens": 2, "prompt_logprobs": 20}
    reply = await site.ask(**wish)
    assert reply.status_code == 200, reply.text
    assert site.hops.wants[-1].hashes == ()  # no worker has anything of it that would be used
    reply = await site.ask(**wish, n=16)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "prompt_logprobs")
    assert "expected at most 65536" in error["message"]


def test_a_prompt_token_that_is_not_among_the_best_comes_first_all_the_same(serve: Any) -> None:
    spell = PromptLogprobs(serve("x", EOS).served.tokenizer, (5, 6)).shape
    _, entry = spell([Logprob(-7.0, 9, ((8, -0.1), (4, -3.0)))])
    assert entry is not None
    found = [(token, value["rank"], value["logprob"]) for token, value in entry.items()]
    assert found == [("6", 9, -7.0), ("8", 1, -0.1), ("4", 2, -3.0)]
