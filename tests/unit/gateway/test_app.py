"""Answers of the whole gateway over scripted stations."""

from dataclasses import replace
from typing import Any

import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.core.phases import Finish
from diptych.router.client import Fleet
from diptych.text.markers import Marker

END = Marker.END_THINK
EOS = Marker.EOS


def texts(events: list[Any], field: str, index: int = 0) -> str:
    choices = [c for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index]
    return "".join(choice["delta"].get(field) or "" for choice in choices)


async def test_a_whole_answer_has_text_finish_and_usage(serve: Any) -> None:
    site = serve("Hello", " you", EOS, cached_tokens=4)
    reply = await site.ask()
    assert reply.status_code == 200
    body = reply.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello you"}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    prompt = len(site.hops.generations[0].prompt)
    sampled = len(site.hops.output.token_ids)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "prompt_cache_hit_tokens": 4,
        "prompt_cache_miss_tokens": prompt - 4,
    }
    assert int(reply.headers["openai-processing-ms"]) >= 0


async def test_reasoning_is_split_off_in_thinking_mode(serve: Any) -> None:
    site = serve("Need it.\n", END, "\n\nYes.", EOS)
    body = (await site.ask(thinking={"type": "enabled"})).json()
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Need it."}
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_that_is_not_wanted_is_counted_but_not_sent(serve: Any) -> None:
    site = serve("Need it.", END, "Yes.", EOS)
    wish = {"thinking": {"type": "enabled"}, "include_reasoning": False}
    message = (await site.ask(**wish)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes."}
    events = await site.events(**wish)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert texts(events, "content") == "Yes."
    assert texts(events, "reasoning_content") == ""


async def test_a_stream_opens_speaks_finishes_counts_and_is_done(serve: Any) -> None:
    site = serve("Need", " it.", END, "Yes", ".", EOS)
    events = await site.events(thinking={"type": "enabled"}, stream_options={"include_usage": True})
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(site.hops.output.token_ids)
    opening, *middle, closing = (event["choices"][0] for event in events)
    assert opening["delta"] == {"role": "assistant", "content": None, "reasoning_content": ""}
    assert closing["delta"] == {}
    assert closing["finish_reason"] == "stop"
    assert all(choice["finish_reason"] is None for choice in [opening, *middle])
    assert all(len(choice["delta"]) == 1 for choice in middle)
    assert texts(events, "reasoning_content") == "Need it."
    assert texts(events, "content") == "Yes."
    for field in ("id", "created", "model", "system_fingerprint", "object"):
        assert len({event[field] for event in events}) == 1
    assert all(event["usage"] is None for event in events)


async def test_without_being_asked_a_stream_has_no_usage(serve: Any) -> None:
    events = await serve("a", EOS).events()
    assert events.pop() == "[DONE]"
    assert all("usage" not in event for event in events)


async def test_running_usage_counts_up(serve: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await serve("abc", "def", EOS).events(stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[0] == 0 or counts[0] == 1
    assert counts[-1] == counts[-2]


async def test_a_step_with_reasoning_and_answer_gives_two_chunks(serve: Any) -> None:
    site = serve("a", END, "b", EOS, tokens_a_step=9)
    events = await site.events(thinking={"type": "enabled"})
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[1:] == [{"reasoning_content": "a"}, {"content": "b"}, {}]


async def test_length_is_the_finish_of_an_output_that_was_cut(serve: Any) -> None:
    site = serve("one two three four five six", EOS)
    body = (await site.ask(max_tokens=3)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


async def test_one_token_needs_no_decode_worker(serve: Any) -> None:
    site = serve("one two", EOS)
    assert (await site.ask(max_tokens=1)).json()["usage"]["completion_tokens"] == 1
    assert len(site.hops.generations) == 1


@pytest.mark.parametrize("tokens_a_step", [1, 2, 50])
async def test_a_stop_string_ends_the_answer_and_every_station_hears(
    serve: Any, tokens_a_step: int
) -> None:
    site = serve("one two. STOP three", *[" and more"] * 30, EOS, tokens_a_step=tokens_a_step)
    body = (await site.ask(stop=["STOP"])).json()
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "one two. "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")
    used = body["usage"]["completion_tokens"]
    text = b"".join(map(site.served.tokenizer.token_bytes, site.hops.output.token_ids[:used]))
    assert b"STOP" in text
    assert b"three" not in text
    events = await site.events(stop="STOP")
    assert texts(events, "content") == "one two. "


async def test_a_stop_token_is_named_counted_and_not_shown(serve: Any) -> None:
    site = serve("one", "!")
    ids = site.hops.output.token_ids
    site.hops.output = type(site.hops.output)(ids, Finish.STOP, stop_token=ids[-1])
    body = (await site.ask(stop_token_ids=[ids[-1]])).json()
    assert body["choices"][0]["message"]["content"] == "one"
    assert body["choices"][0]["stop_reason"] == ids[-1]
    assert body["usage"]["completion_tokens"] == len(ids)
    assert site.hops.generations[0].sampling.stop_token_ids == (ids[-1],)


async def test_choices_are_independent_and_usage_counts_the_prompt_once(serve: Any) -> None:
    site = serve("Hi", EOS)
    body = (await site.ask(n=3, seed=7)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    first_attempts = {g.key.request_id: g for g in site.hops.generations}
    assert len(first_attempts) == 3
    seeds = {g.sampling.seed for g in first_attempts.values()}
    assert 7 in seeds
    assert len(seeds) == 3
    assert body["usage"]["prompt_tokens"] == len(site.hops.generations[0].prompt)
    assert body["usage"]["completion_tokens"] == 3 * len(site.hops.output.token_ids)
    events = await site.events(n=3)
    assert events.count("[DONE]") == 1
    for index in range(3):
        assert texts(events, "content", index) == "Hi"


async def test_token_ids_come_with_the_text_when_asked_for(serve: Any) -> None:
    site = serve("Hello 漢字 you", EOS)
    ids = list(site.hops.output.token_ids)
    assert (await site.ask(return_token_ids=True)).json()["choices"][0]["token_ids"] == ids
    events = await site.events(return_token_ids=True)
    streamed = [i for e in events[:-1] for c in e["choices"] for i in c["token_ids"]]
    assert streamed == ids


async def test_no_character_breaks_an_event_into_lines(serve: Any) -> None:
    text = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029, 0xFEFF, 0x1F600])) + "x"
    site = serve("a" + text, EOS)
    reply = await site.ask(stream=True)
    assert reply.text.splitlines() == reply.text.split("\n")[:-1]
    assert texts(await site.events(), "content") == "a" + text


async def test_a_hybrid_worker_serves_alone(serve: Any) -> None:
    site = serve("Hello", EOS, is_hybrid=True)
    assert (await site.ask()).json()["choices"][0]["message"]["content"] == "Hello"
    assert [g.forced for g in site.hops.generations] == [()]


async def test_parameters_reach_the_engines(serve: Any) -> None:
    site = serve("x", EOS)
    wish = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.1, "seed": -1}
    await site.ask(**wish, ignore_eos=True, max_tokens=9)
    generation = site.hops.generations[0]
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.5,
        0.25,
        7,
        0.1,
    )
    assert sampling.seed == 2**64 - 1
    assert sampling.ignore_eos
    assert generation.max_new == 9


async def test_defaults_are_the_checkpoints_and_a_seed_is_drawn(serve: Any) -> None:
    site = serve("x", EOS)
    await site.ask(top_k=-1)
    await site.ask()
    first, second = (g.sampling for g in site.hops.generations if not g.forced)
    assert (first.temperature, first.top_p, first.top_k) == (1.0, 0.95, 0)
    assert first.seed != second.seed


async def test_users_of_one_tenant_do_not_share_cached_blocks(serve: Any) -> None:
    site = serve("x", EOS)
    for fields in ({}, {"user_id": "a"}, {"user_id": "b"}, {"cache_salt": "a"}, {}):
        await site.ask(messages=[{"role": "user", "content": "word " * 20}], **fields)
    hashes = [want.hashes for want in site.hops.wants]
    assert all(len(h) == len(site.hops.generations[0].prompt) // 8 for h in hashes)
    assert hashes[0] == hashes[4]
    assert len(set(hashes)) == 4


REFUSALS: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "x"}, 404, "model_not_found", "model"),
    ({"model": None}, 400, "missing_required_parameter", "model"),
    ({"messages": []}, 400, "invalid_messages", "messages"),
    ({"max_tokens": -1}, 400, "invalid_value", "max_tokens"),
    ({"max_tokens": 512}, 400, "context_length_exceeded", "messages"),
    ({"stop_token_ids": [1.5]}, 400, "invalid_type", "stop_token_ids[0]"),
    (
        {"messages": [{"role": "user", "content": "word " * 2000}]},
        400,
        "context_length_exceeded",
        "messages",
    ),
    (
        {"messages": [{"role": "user", "content": "word " * 300}]},
        400,
        "context_length_exceeded",
        "messages",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "code", "param"), REFUSALS)
async def test_what_is_wrong_is_said_before_any_station_is_bothered(
    serve: Any, fields: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    site = serve("x", EOS)
    reply = await site.ask(**{"stream": stream, **fields})
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["request_id"] == reply.headers["x-request-id"]
    assert site.hops.wants == []


async def test_malformed_json_is_a_400(serve: Any) -> None:
    site = serve("x", EOS)
    reply = await site.http.post("/v1/chat/completions", content=b'{"model": ')
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_json"


async def test_without_any_worker_ever_heard_of_a_client_shall_come_back(serve: Any) -> None:
    site = serve("x", EOS)
    site.fleet = None
    reply = await site.ask()
    assert reply.status_code == 503
    assert reply.json()["error"]["type"] == "overloaded_error"
    assert int(reply.headers["retry-after"]) >= 1
    site.fleet = Fleet()
    assert (await site.ask()).status_code == 503


async def test_requests_wait_for_workers_that_restart(serve: Any) -> None:
    site = serve("x", EOS)
    await site.ask()
    site.fleet = Fleet(reasons=("no decode worker",))
    assert (await site.ask()).status_code == 200


async def test_a_failure_before_the_first_token_keeps_its_status_in_a_stream(serve: Any) -> None:
    site = serve("x", EOS)
    site.hops.failures["place"] = [Overloaded("full", retry_after_s=2)]
    reply = await site.ask(stream=True)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "no_capacity"


async def test_a_failure_later_is_an_event_and_the_stream_ends_without_done(serve: Any) -> None:
    site = serve("one two three four", EOS)
    for stage in ("token 3", "token 4", "token 5"):  # each attempt's prefill adds one
        site.hops.failures[stage] = [Lost("gone")]
    events = await site.events()
    assert events[-1]["error"]["code"] == "worker_lost"
    assert events[-1]["error"]["request_id"].startswith("req_")
    assert "[DONE]" not in events
    assert texts(events[:-1], "content") != ""


async def test_a_bug_is_a_500_with_a_request_id(serve: Any) -> None:
    site = serve("x", EOS)
    site.hops.failures["reserve"] = [KeyError("secret")] * 3
    reply = await site.ask()
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text


async def test_ignored_parameters_are_named(serve: Any) -> None:
    site = serve("x", EOS)
    for stream in (False, True):
        reply = await site.ask(stream=stream, tempature=1, **{"bad\nname": 1})
        assert reply.headers["x-ignored-params"] == "tempature"


async def test_the_same_endpoints_without_v1(serve: Any) -> None:
    site = serve("x", EOS)
    assert (await site.http.post("/chat/completions", json=site.body())).status_code == 200
    assert (await site.http.get("/models")).status_code == 200


async def test_request_ids_are_ours_and_theirs_are_echoed(serve: Any) -> None:
    site = serve("x", EOS)
    reply = await site.http.get("/livez", headers={"x-request-id": "mine-1"})
    assert reply.headers["x-client-request-id"] == "mine-1"
    assert reply.headers["x-request-id"] != "mine-1"
    reply = await site.http.get("/livez", headers={"x-request-id": "has space"})
    assert "x-client-request-id" not in reply.headers


async def test_any_authorization_is_accepted(serve: Any) -> None:
    site = serve("x", EOS)
    reply = await site.http.get("/v1/models", headers={"authorization": "Bearer nonsense"})
    assert reply.status_code == 200


async def test_models_are_listed_and_found(serve: Any) -> None:
    site = serve("x", EOS)
    (model,) = (await site.http.get("/v1/models")).json()["data"]
    assert model["id"] == "tiny"
    assert model["max_model_len"] == 512
    assert (await site.http.get("/v1/models/tiny")).json() == model
    missing = await site.http.get("/v1/models/org%2Fother")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_alive_is_not_ready(serve: Any) -> None:
    site = serve("x", EOS)
    for path in ("/readyz", "/ping"):
        assert (await site.http.get(path)).status_code == 200
        assert (await site.http.head(path)).status_code == 200
    for fleet, reason in (
        (None, {"component": "router", "reason": "not heard"}),
        (
            Fleet(reasons=("no decode worker",)),
            {"component": "fleet", "reason": "no decode worker"},
        ),
    ):
        site.fleet = fleet
        reply = await site.http.get("/ping")
        assert (reply.status_code, reply.content) == (503, b"")
        assert reply.headers["retry-after"] == "1"
        reply = await site.http.get("/readyz")
        assert reply.status_code == 503
        assert reply.json() == {"status": "not_ready", "reasons": [reason]}
        assert reply.headers["retry-after"] == "1"
    for path in ("/livez", "/health", "/version"):
        assert (await site.http.get(path)).status_code == 200
        assert (await site.http.head(path)).status_code == 200


async def test_a_router_that_went_away_makes_it_unready(serve: Any) -> None:
    site = serve("x", EOS)
    site.is_connected = False
    assert (await site.http.get("/readyz")).status_code == 503


async def test_a_gateway_that_leaves_takes_nothing_new(serve: Any) -> None:
    site = serve("x", EOS)
    await site.traffic.drain(1.0)
    reply = await site.ask()
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "draining"
    assert (await site.http.get("/readyz")).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_what_still_runs_when_it_leaves_is_told(serve: Any, visit: Any, stream: bool) -> None:
    site = serve("one two three four", EOS)
    site.hops.holds = {"token 3"}
    client = visit(site, stream=stream)
    await site.hops.reached("token 3")
    await site.traffic.drain(0.01)
    await client.over()
    assert b'"code":"draining"' in client.body
    assert b"[DONE]" not in client.body


async def test_every_answer_names_the_model_version(serve: Any) -> None:
    site = serve("x", EOS)
    fingerprint = (await site.ask()).json()["system_fingerprint"]
    for path in ("/livez", "/nowhere"):
        assert (await site.http.get(path)).headers["x-model-version"] == fingerprint


async def test_an_answer_goes_on_from_a_prefix_and_tells_only_what_is_new(serve: Any) -> None:
    site = serve("\n two", EOS)
    messages = [{"role": "user", "content": "x"}]
    messages.append({"role": "assistant", "content": "one", "prefix": True})
    choice = (await site.ask(messages=messages)).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "\n two"}
    end = site.served.tokenizer.encode([END, "one"])
    assert site.hops.generations[0].prompt[-len(end) :] == end


async def test_reasoning_that_has_begun_goes_on(serve: Any) -> None:
    site = serve(" it.", END, "Yes", EOS)
    messages = [{"role": "user", "content": "x"}]
    begun = {"role": "assistant", "content": "", "reasoning_content": "Need", "prefix": True}
    body = (await site.ask(messages=[*messages, begun], thinking=None)).json()
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes", "reasoning_content": " it."}


@pytest.mark.parametrize(
    "fields", [{"regex": "a"}, {"response_format": {"type": "json_object"}}], ids=str
)
async def test_a_prefix_and_a_constraint_do_not_go_together(serve: Any, fields: Any) -> None:
    messages = [{"role": "user", "content": "x"}]
    messages.append({"role": "assistant", "content": "one", "prefix": True})
    reply = await serve("a", EOS).ask(messages=messages, **fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], [error["param"]]) == ("conflicting_parameters", list(fields))


async def test_answers_say_while_the_router_decides_without_reports(serve: Any) -> None:
    site = serve("one", EOS)
    for policy, expected in (("cost", None), ("own_ledger", "own_ledger")):
        site.fleet = replace(site.fleet, policy=policy)
        reply = await site.ask()
        assert (reply.status_code, reply.headers.get("x-diptych-policy")) == (200, expected)
    streamed = await site.ask(stream=True)
    assert streamed.headers["x-diptych-policy"] == "own_ledger"
