"""Completions of the whole gateway over scripted stations."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from diptych.core.phases import Finish
from diptych.core.sampling import choice_seed
from diptych.gateway.completions.dialect import CompletionDialect
from diptych.gateway.policy import Policy
from diptych.gateway.tenancy.visit import visit_of
from diptych.text.markers import Marker

Events = Callable[[httpx.Response], list[Any]]

BOS, EOS = Marker.BOS, Marker.EOS
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def prompts_of(site: Any) -> list[tuple[int, ...]]:
    """What the engines were asked, each once."""
    return list(dict.fromkeys(generation.prompt for generation in site.hops.generations))


def told(events: list[Any]) -> dict[int, dict[str, Any]]:
    """Of each choice of a stream: its text, its finish, and the joined lists of logprobs."""
    found: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "finish": [], "lists": {}})
    for choice in (choice for event in events for choice in event["choices"]):
        known = found[choice["index"]]
        known["text"] += choice["text"]
        if choice["finish_reason"]:
            known["finish"].append(choice["finish_reason"])
        for name, values in (choice["logprobs"] or {}).items():
            known["lists"].setdefault(name, []).extend(values)
    return found


async def test_a_whole_completion_has_text_finish_and_usage(serve: Any, complete: Any) -> None:
    site = serve(" you", EOS, cached_tokens=1)
    body = (await complete(site)).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "text": " you",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    (prompt,) = prompts_of(site)
    sampled = len(site.hops.output.token_ids)
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert body["usage"]["completion_tokens"] == sampled
    assert body["usage"]["prompt_cache_hit_tokens"] == 1
    assert site.hops.generations[0].max_new == 16


async def test_a_stream_has_the_same_object_and_one_finish(
    serve: Any, complete: Any, events_of: Events
) -> None:
    site = serve("one", " two", EOS)
    reply = await complete(site, stream=True, stream_options={"include_usage": True})
    events = events_of(reply)
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == (
        [],
        len(site.hops.output.token_ids),
    )
    assert {event["object"] for event in events} == {"text_completion"}
    for name in ("id", "created", "model", "system_fingerprint"):
        assert len({event[name] for event in events}) == 1
    assert all(event["usage"] is None for event in events)
    assert told(events)[0] == {"text": "one two", "finish": ["stop"], "lists": {}}
    assert events[-1]["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    ("prompt", "fields", "before"),
    [
        ("Hello", {}, [BOS, "Hello"]),
        ("Hello", {"add_special_tokens": False}, ["Hello"]),
        (BOS.value + "Hello", {}, [BOS, "Hello"]),
        (BOS.value + "Hello", {"add_special_tokens": False}, [BOS, "Hello"]),
        ("", {}, [BOS]),
        ("a<｜User｜>b", {}, [BOS, "a", Marker.USER, "b"]),
        ("a", {"suffix": "b"}, [BOS, Marker.FIM_BEGIN, "a", Marker.FIM_HOLE, "b", Marker.FIM_END]),
        ("", {"suffix": ""}, [BOS, Marker.FIM_BEGIN, Marker.FIM_HOLE, Marker.FIM_END]),
        (
            BOS.value,
            {"suffix": "<｜User｜>"},
            [
                *(BOS, Marker.FIM_BEGIN, BOS.value),
                *(Marker.FIM_HOLE, "<｜User｜>", Marker.FIM_END),
            ],
        ),
    ],
    ids=str,
)
async def test_t81_a_text_begins_with_one_bos(
    serve: Any, complete: Any, prompt: str, fields: Any, before: Any
) -> None:
    site = serve("x", EOS)
    reply = await complete(site, prompt, **fields)
    assert reply.status_code == 200, reply.text
    assert prompts_of(site) == [site.served.tokenizer.encode(before)]
    assert reply.json()["usage"]["prompt_tokens"] == len(prompts_of(site)[0])


async def test_t81_ids_are_taken_as_they_are(serve: Any, complete: Any) -> None:
    site = serve("x", EOS)
    await complete(site, [7, 8, 0, 9])
    assert prompts_of(site) == [(7, 8, 0, 9)]


async def test_special_tokens_may_be_forbidden_in_raw_text(serve: Any, complete: Any) -> None:
    site = serve("x", EOS, policy=Policy(allow_raw_special=False))
    await complete(site, "a<｜User｜>b")
    assert prompts_of(site) == [site.served.tokenizer.encode([BOS, "a<｜User｜>b"])]


@pytest.mark.parametrize("prompt", [[960], [1, 2, -1], [[1], [2**31]], [[1, 10**30]]], ids=str)
async def test_t108_ids_out_of_range_are_refused(serve: Any, complete: Any, prompt: Any) -> None:
    reply = await complete(serve("x", EOS), prompt)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "prompt", "invalid_value")
    assert "from 0 to 959" in error["message"]


@pytest.mark.parametrize("key", ["abc", "-1", "960"])
async def test_t85_a_bias_for_no_token_is_refused(serve: Any, complete: Any, key: str) -> None:
    reply = await complete(serve("x", EOS), logit_bias={key: 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logit_bias")


async def test_nothing_at_all_is_no_prompt(serve: Any, complete: Any) -> None:
    reply = await complete(serve("x", EOS), "", add_special_tokens=False)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("prompt", ["word " * 5000, [5] * 512, [[5] * 497]], ids=len)
async def test_a_prompt_that_is_too_long_is_refused(serve: Any, complete: Any, prompt: Any) -> None:
    fields = {"max_tokens": 16}
    error = (await complete(serve("x", EOS), prompt, **fields)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"].startswith("This model's maximum context length is 512 tokens.")


@pytest.mark.parametrize(("length", "status"), [(511, 200), (512, 400)])
async def test_t80_there_is_room_for_one_token_even_if_none_is_wanted(
    serve: Any, complete: Any, length: int, status: int
) -> None:
    for max_tokens in (0, 1):
        reply = await complete(serve("x", EOS), [5] * length, max_tokens=max_tokens, echo=True)
        assert reply.status_code == status


async def test_choices_of_a_prompt_stand_together_and_each_has_its_seed(
    serve: Any, complete: Any
) -> None:
    site = serve("x", EOS)
    body = (await complete(site, ["one", "three four"], n=3, seed=7)).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    seeds = {g.key.request_id: (g.prompt, g.sampling.seed) for g in site.hops.generations}
    one, two = prompts_of(site)
    expected = [(prompt, choice_seed(7, j)) for prompt in (one, two) for j in range(3)]
    assert sorted(seeds.values()) == sorted(expected)
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(one) + len(two)
    assert usage["completion_tokens"] == 6 * len(site.hops.output.token_ids)


async def test_each_prompt_counts_what_of_it_was_cached_once(serve: Any, complete: Any) -> None:
    usage = (await complete(serve("x", EOS, cached_tokens=2), ["one", "two"], n=2)).json()["usage"]
    assert usage["prompt_cache_hit_tokens"] == 4
    assert (
        usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
        == (usage["prompt_tokens"])
    )


async def test_usage_tells_where_in_the_cache_the_prompts_were(serve: Any, complete: Any) -> None:
    site = serve("x", EOS, cached_tokens=2, cached_disk=1)
    usage = (await complete(site, ["one", "two"], n=2)).json()["usage"]
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 4, "cached_tokens_by_tier": {"device": 2, "memory": 0, "disk": 2},
    }  # fmt: skip
    events = (await complete(site, stream=True, stream_options={"include_usage": True})).text
    assert '"cached_tokens_by_tier":{"device":1,"memory":0,"disk":1}' in events


@pytest.mark.parametrize("tokens_a_step", [1, 3, 50])
async def test_a_stop_string_ends_plain_text(serve: Any, complete: Any, tokens_a_step: int) -> None:
    site = serve("\n\none. STOP two", EOS, tokens_a_step=tokens_a_step)
    (choice,) = (await complete(site, stop="STOP", logprobs=0, max_tokens=50)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("\n\none. ", "STOP")
    kept = await complete(site, stop="STOP", include_stop_str_in_output=True, max_tokens=50)
    assert kept.json()["choices"][0]["text"] == "\n\none. STOP"


async def test_thinking_is_part_of_plain_text(serve: Any, complete: Any) -> None:
    site = serve("\na", Marker.THINK, "\nb\n", EOS)
    (choice,) = (await complete(site)).json()["choices"]
    assert choice["text"] == "\na<think>\nb\n"


@pytest.mark.parametrize("tokens_a_step", [1, 2, 50])
async def test_t2_half_a_character_of_the_prompt_stays_in_the_prompt(
    serve: Any, complete: Any, tokens_a_step: int
) -> None:
    site = serve("x")
    unicorn = site.served.tokenizer.encode(["🦄"])
    assert len(unicorn) > 2
    site.hops.output = type(site.hops.output)(
        (*unicorn[-1:], *unicorn, *site.served.tokenizer.encode(["y"]), 1),
        tokens_a_step=tokens_a_step,
    )
    prompt = [*site.served.tokenizer.encode(["a"]), *unicorn[:-1]]
    (alone,) = (await complete(site, prompt)).json()["choices"]
    assert alone["text"] == "\ufffd🦄y"
    (echoed,) = (await complete(site, prompt, echo=True, logprobs=1)).json()["choices"]
    assert echoed["text"] == "a\ufffd\ufffd🦄y"
    places = echoed["logprobs"]["text_offset"]
    assert places == sorted(places)
    assert places[: len(prompt)] == [0, *[1] * (len(prompt) - 1)]
    assert places[len(prompt) :] == [2, *[3] * len(unicorn), 4, 5]


@pytest.mark.parametrize("tokens_a_step", [1, 2, 50])
@pytest.mark.parametrize("echo", [False, True])
async def test_t76_every_token_has_one_entry(
    serve: Any, complete: Any, events_of: Events, echo: bool, tokens_a_step: int
) -> None:
    site = serve("Du 🦄, ja\n\nx", EOS, tokens_a_step=tokens_a_step)
    wish = {"logprobs": 1, "echo": echo, "max_tokens": 50}
    body = (await complete(site, "é Hello", **wish)).json()
    (choice,) = body["choices"]
    lists = choice["logprobs"]
    assert tuple(lists) == LISTS
    ids = site.hops.output.token_ids
    if echo:
        ids = prompts_of(site)[0][1:] + ids  # BOS was not the client's
    tokenizer = site.served.tokenizer
    assert len(lists["tokens"]) == len(ids)
    assert {len(values) for values in lists.values()} == {len(ids)}
    assert lists["tokens"][-1] == EOS.value
    assert choice["text"] == ("é Hello" if echo else "") + "Du 🦄, ja\n\nx"
    data = b""
    for token_id, place in zip(ids, lists["text_offset"], strict=True):
        assert place == len(data.decode(errors="ignore"))
        data += tokenizer.token_bytes(token_id)
    assert lists["top_logprobs"][-1] == {EOS.value: -0.5}
    assert (lists["token_logprobs"][0] is None) == echo
    assert body["usage"]["completion_tokens"] == len(site.hops.output.token_ids)
    events = events_of(await complete(site, "é Hello", stream=True, **wish))
    assert told(events[:-1])[0] == {"text": choice["text"], "finish": ["stop"], "lists": lists}


async def test_entries_of_a_stop_string_stay_within_the_text(
    serve: Any, complete: Any, events_of: Events
) -> None:
    site = serve("abc", "\n", "x", "y", "z", EOS)
    wish = {"logprobs": 0, "stop": "\nxy"}
    body = (await complete(site, **wish)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == "abc\nxy"
    assert len(lists["tokens"]) == body["usage"]["completion_tokens"]
    assert max(lists["text_offset"]) == 3
    events = events_of(await complete(site, stream=True, **wish))
    assert told(events[:-1])[0]["lists"] == lists


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
async def test_t77_a_text_is_scored_token_by_token(
    serve: Any, complete: Any, events_of: Events, max_tokens: int, stream: bool
) -> None:
    site = serve("one two", EOS)
    prompts = [[5, 6, 7, 8], [9, 10]]
    reply = await complete(
        site, prompts, max_tokens=max_tokens, echo=True, logprobs=1, temperature=0, stream=stream
    )
    if stream:
        events = events_of(reply)
        assert events.pop() == "[DONE]"
        found = {index: one["lists"] for index, one in told(events).items()}
        assert [one["finish"] for one in told(events).values()] == [["length"]] * 2
    else:
        body = reply.json()
        assert body["usage"]["prompt_tokens"] == 6
        assert body["usage"]["completion_tokens"] == 2 * max_tokens
        assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 2
        found = {choice["index"]: choice["logprobs"] for choice in body["choices"]}
    for index, prompt in enumerate(prompts):
        lists = found[index]
        assert len(lists["tokens"]) == len(prompt) + max_tokens
        assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
        # As evaluation harnesses read it.
        for value, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
            assert value == max(top.values()) == -0.5
    assert all(g.sampling.prompt_logprobs == 1 for g in site.hops.generations)
    assert all(g.max_new == 1 for g in site.hops.generations)
    assert all(want.hashes == () for want in site.hops.wants)


async def test_the_token_itself_is_among_the_alternatives(serve: Any, complete: Any) -> None:
    site = serve("x", EOS, num_top=0)
    (choice,) = (await complete(site, logprobs=0)).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"x": -0.5}, {EOS.value: -0.5}]
    site.hops.output = type(site.hops.output)(site.hops.output.token_ids, num_top=3)
    (choice,) = (await complete(site, logprobs=2)).json()["choices"]
    first = choice["logprobs"]["top_logprobs"][0]
    assert first.pop("x") == -0.5
    assert list(first.values()) == [-9999.0]  # JSON has no minus infinity


async def test_an_echo_needs_no_logprobs(serve: Any, complete: Any) -> None:
    site = serve(" you", EOS)
    body = (await complete(site, "Hello<｜User｜>", echo=True)).json()
    assert body["choices"][0]["text"] == "Hello<｜User｜> you"
    assert body["choices"][0]["logprobs"] is None
    assert site.hops.generations[0].sampling.prompt_logprobs is None
    body = (await complete(site, "Hello", echo=True, max_tokens=0)).json()
    assert (body["choices"][0]["text"], body["usage"]["completion_tokens"]) == ("Hello", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone_has_its_own_logprobs(
    serve: Any, complete: Any, events_of: Events, stream: bool
) -> None:
    site = serve("x", EOS)
    wish = {"prompt_logprobs": 0, "echo": True, "logprobs": 2, "stream": stream}
    reply = await complete(site, ["Hello", "you"], **wish)
    bodies = events_of(reply)[:-1] if stream else [reply.json()]
    found = [c for b in bodies for c in b["choices"] if "prompt_logprobs" in c]
    assert sorted(choice["index"] for choice in found) == [0, 1]
    for choice in found:
        prompt = prompts_of(site)[choice["index"]]
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert [list(each) for each in rest] == [[str(token)] for token in prompt[1:]]


async def test_more_scores_than_a_message_holds_are_refused(serve: Any, complete: Any) -> None:
    wish = {"echo": True, "max_tokens": 1}
    reply = await complete(serve("x", EOS), [[5] * 400] * 16, logprobs=20, **wish)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
    assert (await complete(serve("x", EOS), [[5] * 400] * 7, logprobs=20, **wish)).is_success


async def test_ids_are_told_if_asked_for(serve: Any, complete: Any, events_of: Events) -> None:
    site = serve("one two", EOS)
    (choice,) = (await complete(site, return_token_ids=True)).json()["choices"]
    assert tuple(choice["token_ids"]) == site.hops.output.token_ids
    reply = await complete(site, return_token_ids=True, stream=True, echo=True)
    events = events_of(reply)[:-1]
    ids = [token for event in events for token in event["choices"][0]["token_ids"]]
    assert tuple(ids) == site.hops.output.token_ids


async def test_a_stop_token_is_named_and_not_shown(serve: Any, complete: Any) -> None:
    site = serve("one", "!")
    ids = site.hops.output.token_ids
    site.hops.output = type(site.hops.output)(ids, Finish.STOP, stop_token=ids[-1])
    (choice,) = (await complete(site, stop_token_ids=[ids[-1]], logprobs=0)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("one", ids[-1])
    assert len(choice["logprobs"]["tokens"]) == len(ids)


async def test_a_constraint_goes_along(serve: Any, complete: Any) -> None:
    site = serve("aaa", EOS)
    assert (await complete(site, structured_outputs={"regex": "a+"})).is_success
    constraint = site.hops.generations[0].constraint
    assert (constraint.source, site.hops.generations[0].constraint_after) == ("a+", "")
    reply = await complete(site, regex="(")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_schema")


async def test_running_usage_counts_up(serve: Any, complete: Any, events_of: Events) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    site = serve("abc", "def", EOS)
    reply = await complete(site, stream=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events_of(reply)[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == len(site.hops.output.token_ids)


async def test_another_model_is_not_found(serve: Any, complete: Any) -> None:
    reply = await complete(serve("x", EOS), model="other")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("base", ["", "/beta", "/beta/v1"])
async def test_the_same_below_other_bases(serve: Any, base: str) -> None:
    site = serve("x", EOS)
    body = {"model": "tiny", "prompt": "a", "suffix": "b"}
    assert (await site.http.post(f"{base}/completions", json=body)).is_success


async def test_special_tokens_are_text_if_asked_for(
    serve: Any, complete: Any, events_of: Events
) -> None:
    site = serve("a", Marker.DSML, "b", EOS)
    wish = {"skip_special_tokens": False, "logprobs": 0}
    (choice,) = (await complete(site, **wish)).json()["choices"]
    assert choice["text"] == "a｜DSML｜b"
    assert choice["logprobs"]["text_offset"] == [0, 1, 7, 8]
    events = events_of(await complete(site, stream=True, **wish))
    assert told(events[:-1])[0]["lists"] == choice["logprobs"]
    (choice,) = (await complete(site)).json()["choices"]
    assert choice["text"] == "ab"


@pytest.mark.parametrize(
    ("prompt", "kept", "expected"),
    [([5, 6, 7], 2, [6, 7]), ([5, 6, 7], 9, [5, 6, 7]), ([5] * 600, -1, [5] * 508)],
    ids=["two", "all", "as many as fit"],
)
async def test_ids_may_be_cut_from_the_left(
    serve: Any, complete: Any, prompt: Any, kept: int, expected: Any
) -> None:
    site = serve("x", EOS)
    assert (await complete(site, prompt, truncate_prompt_tokens=kept, max_tokens=4)).is_success
    assert prompts_of(site) == [tuple(expected)]


async def test_a_text_that_was_cut_is_told_from_where_it_was_cut(serve: Any, complete: Any) -> None:
    site = serve("x", EOS)
    whole = site.served.tokenizer.encode([BOS, "one two three"])
    for kept in (1, len(whole) - 1, len(whole)):
        reply = await complete(site, "one two three", truncate_prompt_tokens=kept, echo=True)
        shown = b"".join(map(site.served.tokenizer.token_bytes, whole[-kept:])).decode()
        assert reply.json()["choices"][0]["text"] == shown + "x"
        assert site.hops.generations[-1].prompt == whole[-kept:]


async def test_what_stands_around_a_hole_is_not_cut(serve: Any, complete: Any) -> None:
    reply = await complete(serve("x", EOS), suffix="b", truncate_prompt_tokens=2)
    assert reply.json()["error"]["param"] == "truncate_prompt_tokens"


async def test_deepseek_tells_usage_with_the_last_chunk(
    serve: Any, complete: Any, events_of: Events
) -> None:
    site = serve("x", EOS, policy=Policy(stream_usage_style="deepseek"))
    events = events_of(await complete(site, ["a", "b"], stream=True, n=2))
    assert events.pop() == "[DONE]"
    last = events.pop()
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 4 * len(site.hops.output.token_ids)
    assert last["usage"]["prompt_tokens"] == sum(map(len, prompts_of(site)))
    assert all(event["usage"] is None for event in events)


async def test_the_operator_bounds_choices_and_may_clip_lengths(serve: Any, complete: Any) -> None:
    site = serve("x", EOS, policy=Policy(max_n=2, clip_explicit_max_tokens=True))
    assert (await complete(site, n=3)).json()["error"]["param"] == "n"
    assert (await complete(site, [5] * 500, max_tokens=100)).is_success
    assert site.hops.generations[0].max_new == 12


async def test_fields_that_do_nothing_are_told_apart_from_those_nobody_knows(serve: Any) -> None:
    site = serve("x", EOS)
    body = {"model": "tiny", "prompt": "a", "metadata": {"a": "b"}, "store": True, "tempature": 1}
    ask = await CompletionDialect(site.served).read(body, visit_of({"path": "/v1/completions"}))
    assert (ask.harmless, ask.ignored) == (("metadata", "store"), ("tempature",))
    reply = await site.http.post("/v1/completions", json=body)
    assert reply.headers["x-ignored-params"] == "tempature"
