"""What a caller meets at the door, over scripted stations."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.gateway import playground
from diptych.gateway.tenancy.desk import Actor
from diptych.gateway.tenancy.door import duration, retention_of
from diptych.gateway.tenancy.keys import Limits, Scope
from diptych.gateway.tenancy.usage import Total
from diptych.text.markers import Marker

EOS = Marker.EOS
BY = Actor("tester")
RESET = re.compile(r"(\d+m)?\d+(\.\d+)?s|\d+ms")

Guard = Callable[..., Any]


async def totals(guarded: Any, group_by: str = "key") -> dict[str, Total]:
    await guarded.office.clerk.settled()
    found = await guarded.office.usage.totals("2000-01-01", "2999-12-31", group_by)
    return {total.group: total for total in found}


def is_at_baseline(guarded: Any) -> bool:
    return guarded.office.book.num_held == 0 and not guarded.office.clerk.visits


async def test_a_valid_key_is_answered_and_others_are_not(guard: Guard) -> None:
    guarded = guard("Hello", EOS)
    assert (await guarded.ask("anything")).status_code == 200  # no key yet
    key = await guarded.key()
    assert (await guarded.ask(key)).status_code == 200
    for wrong in (None, "anything", key[:-1] + "x"):
        reply = await guarded.ask(wrong)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert error["request_id"] == reply.headers["x-request-id"]
        assert "x-should-retry" not in reply.headers


@pytest.mark.parametrize("path", ["/livez", "/health", "/readyz", "/version"])
async def test_probes_need_no_key(guard: Guard, path: str) -> None:
    guarded = guard("x", EOS)
    await guarded.key()
    assert (await guarded.http.get(path)).status_code == 200


async def test_the_page_needs_no_key(guard: Guard) -> None:
    guarded = guard("x", EOS)
    await guarded.key()
    for route in playground.routes():
        assert (await guarded.http.get(route.path)).status_code == 200
    assert (await guarded.http.get("/playground/nothing")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/models", "/v1/embeddings", "/nowhere", "/v1/models/tiny"])
async def test_everything_else_does(guard: Guard, path: str) -> None:
    guarded = guard("x", EOS)
    await guarded.key()
    assert (await guarded.http.get(path)).status_code == 401


async def test_a_401_is_answered_before_the_body_is_read(guard: Guard) -> None:
    guarded = guard("x", EOS)
    await guarded.key()

    async def body() -> Any:
        raise AssertionError("the body was read")
        yield b""

    reply = await guarded.http.post("/v1/chat/completions", content=body())
    assert reply.status_code == 401


async def test_the_order_of_checks_is_size_key_rate_and_then_the_body(guard: Guard) -> None:
    guarded = guard("x", EOS)
    key = await guarded.key(requests_per_min=1)
    url, headers = "/v1/chat/completions", {"authorization": f"Bearer {key}"}
    huge = {"content-length": str(10**9)}
    assert (await guarded.http.post(url, headers=huge)).status_code == 413
    assert (await guarded.http.post(url, content=b"{", headers=headers)).status_code == 400
    assert (await guarded.http.post(url, content=b"{", headers=headers)).status_code == 429
    assert (await guarded.http.post(url, content=b"{")).status_code == 401


async def test_a_key_without_the_scope_or_the_model_is_forbidden(guard: Guard) -> None:
    guarded = guard("x", EOS)
    for key, words in (
        (await guarded.key(Scope.USAGE_READ), "inference"),
        (await guarded.key(models=("other",)), "tiny"),
    ):
        reply = await guarded.ask(key)
        assert reply.status_code == 403
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "insufficient_permissions")
        assert words in error["message"]
    headers = {"authorization": f"Bearer {key}"}
    assert (await guarded.http.get("/v1/models", headers=headers)).json()["data"] == []
    assert (await guarded.http.get("/v1/models/tiny", headers=headers)).status_code == 403
    assert (await guarded.ask(key, model="none")).status_code == 404


async def test_t105_requests_a_minute_are_limited_and_told(guard: Guard) -> None:
    guarded = guard("x", EOS)
    key = await guarded.key(requests_per_min=3)
    for left in (2, 1, 0):
        reply = await guarded.ask(key)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
        assert RESET.fullmatch(reply.headers["x-ratelimit-reset-requests"])
        assert "x-ratelimit-limit-tokens" not in reply.headers
    reply = await guarded.ask(key)
    assert reply.status_code == 429
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "3 requests per minute" in error["message"]
    assert 19_000 <= int(reply.headers["retry-after-ms"]) <= 31_000
    assert int(reply.headers["retry-after"]) * 1000 >= int(reply.headers["retry-after-ms"])
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"


async def test_keys_of_one_tenant_share_its_limits(guard: Guard) -> None:
    guarded = guard("x", EOS)
    limits = Limits(requests_per_min=2)
    await guarded.office.desk.set_tenant_limits(BY, "acme", limits)
    first, second = await guarded.key(tenant="acme"), await guarded.key(tenant="acme")
    other = await guarded.key(tenant="other")
    assert [(await guarded.ask(key)).status_code for key in (first, second, first, other)] == [
        200,
        200,
        429,
        200,
    ]


async def test_tokens_are_reserved_and_what_was_not_used_comes_back(guard: Guard) -> None:
    guarded = guard("Hello", EOS, cached_tokens=4)
    key = await guarded.key(tokens_per_min=600)
    reply = await guarded.ask(key, max_tokens=100)
    usage = reply.json()["usage"]
    reserved = usage["prompt_tokens"] + 100
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) == 600 - reserved
    await guarded.office.clerk.settled()
    cached = 1  # a tenth of four, rounded up
    used = usage["prompt_tokens"] - 4 + cached + usage["completion_tokens"]
    again = await guarded.ask(key, max_tokens=100)
    left = int(again.headers["x-ratelimit-remaining-tokens"])
    assert 600 - used - reserved <= left <= 600 - used - reserved + 10
    slow = await guarded.key(tokens_per_min=60)
    assert (await guarded.ask(slow, max_tokens=50)).status_code == 200
    await guarded.office.clerk.settled()
    assert (await guarded.ask(slow, max_tokens=52)).status_code == 429
    too_large = await guarded.ask(await guarded.key(tokens_per_min=5), max_tokens=10)
    assert too_large.status_code == 429
    assert too_large.headers["x-should-retry"] == "false"
    await guarded.office.clerk.settled()
    assert is_at_baseline(guarded)


async def test_a_default_limit_reserves_no_more_than_the_cap(guard: Guard) -> None:
    guarded = guard("x", EOS)
    key = await guarded.key(tokens_per_min=100_000)
    reply = await guarded.ask(key)
    prompt = reply.json()["usage"]["prompt_tokens"]
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) >= 100_000 - prompt - 8192


@pytest.mark.parametrize("name", ["tokens_per_day", "tokens_per_month"])
async def test_a_quota_that_is_used_up_is_a_402_that_is_not_retried(
    guard: Guard, name: str
) -> None:
    guarded = guard("Hello", EOS)
    key = await guarded.key(**{name: 60})
    assert (await guarded.ask(key, max_tokens=20)).status_code == 200
    await guarded.office.clerk.settled()
    reply = await guarded.ask(key, max_tokens=50)
    assert reply.status_code == 402
    error = reply.json()["error"]
    assert error["type"] == error["code"] == "insufficient_quota"
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    await guarded.office.clerk.settled()
    assert is_at_baseline(guarded)
    assert (await guarded.ask(key, max_tokens=5)).status_code == 200


async def test_input_and_output_have_their_own_bounds(guard: Guard) -> None:
    guarded = guard("Hello there, you", EOS)
    short = await guarded.key(max_input_tokens=2)
    reply = await guarded.ask(short)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    bounded = await guarded.key(max_output_tokens=2)
    reply = await guarded.ask(bounded, max_tokens=3)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
    assert (await guarded.ask(bounded)).status_code == 200
    assert guarded.site.hops.generations[-1].max_new == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_places_are_limited_and_free_again(guard: Guard, visit: Any, stream: bool) -> None:
    guarded = guard("one two three four", EOS)
    guarded.site.hops.holds = {"token 2"}
    key = await guarded.key(concurrency=1)
    first = asyncio.create_task(guarded.ask(key, stream=stream))
    await guarded.site.hops.reached("token 2")
    refused = await guarded.ask(key)
    assert refused.status_code == 429
    assert "1 requests at a time" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after-ms"]) >= 1000
    guarded.site.hops.release()
    assert (await first).status_code == 200
    await guarded.office.clerk.settled()
    assert (await guarded.ask(key)).status_code == 200


async def test_usage_adds_up(guard: Guard) -> None:
    guarded = guard("Need it.", Marker.END_THINK, "Yes.", EOS, cached_tokens=4)
    key = await guarded.key(tenant="acme")
    key_id = key.split("-")[1]
    thinking = {"thinking": {"type": "enabled"}}
    replies = [(await guarded.ask(key, **thinking)).json()["usage"] for _ in range(2)]
    streamed = await guarded.ask(
        key, stream=True, stream_options={"include_usage": True}, n=2, **thinking
    )
    data = [line[6:] for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    replies.append(orjson.loads(data[-1])["usage"])
    assert (await guarded.ask(key, temperature=9)).status_code == 400
    assert (await totals(guarded))[key_id] == Total(
        key_id,
        requests=4,
        errors=1,
        prompt_tokens=sum(usage["prompt_tokens"] for usage in replies),
        cached_tokens=12,
        completion_tokens=sum(usage["completion_tokens"] for usage in replies),
        reasoning_tokens=sum(
            usage["completion_tokens_details"]["reasoning_tokens"] for usage in replies
        ),
        unbilled_tokens=0,
    )
    assert (await totals(guarded, "tenant"))["acme"].requests == 4
    assert (await totals(guarded, "model"))["tiny"].requests == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_pays_for_what_was_made_and_gets_the_rest_back(
    guard: Guard, visit: Any, stream: bool
) -> None:
    guarded = guard("one two three four", EOS)
    guarded.site.hops.holds = {"token 3"}
    guarded.site.app = guarded.app  # without a key: the anonymous caller
    client = visit(guarded.site, stream=stream)
    await guarded.site.hops.reached("token 3")
    client.leave()
    await client.over()
    total = (await totals(guarded))["anonymous"]
    assert (total.requests, total.errors, total.completion_tokens) == (1, 1, 2)
    assert total.prompt_tokens > 0
    assert is_at_baseline(guarded)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_we_fail_is_not_billed(guard: Guard, stream: bool) -> None:
    guarded = guard("one two", EOS)
    guarded.site.hops.failures["reserve"] = [Broken("bug")] * 3
    key = await guarded.key(tokens_per_min=100_000, tokens_per_day=100_000)
    reply = await guarded.ask(key, stream=stream)
    assert reply.status_code == (200 if stream else 500)
    total = (await totals(guarded))[key.split("-")[1]]
    assert (total.errors, total.prompt_tokens, total.completion_tokens) == (1, 0, 0)
    assert total.unbilled_tokens > 0
    assert is_at_baseline(guarded)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_of_ours_is_not_billed_either(
    guard: Guard, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = guard("one two", EOS)

    async def break_down(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(guarded.site.pipeline, "run", break_down)
    reply = await guarded.ask(None, stream=stream)
    assert reply.status_code == 500
    total = (await totals(guarded))["anonymous"]
    assert (total.errors, total.prompt_tokens) == (1, 0)
    assert total.unbilled_tokens > 0


async def test_two_tenants_never_share_a_cache_scope(guard: Guard) -> None:
    guarded = guard("x", EOS)
    keys = [await guarded.key(tenant=tenant) for tenant in ("a", "b", "a")]
    scopes = []
    for key in keys:
        assert (await guarded.ask(key)).status_code == 200
        scopes.append(guarded.site.hops.generations[-1].scope)
    a, b, again = scopes
    assert a == again != b
    narrowed = {"user_id": "u", "cache_salt": "s"}
    seen = {a, b}
    for fields in ({"user_id": "u"}, {"cache_salt": "s"}, narrowed, {"user_id": "b"}):
        for key in keys[:2]:
            await guarded.ask(key, **fields)
            scope = guarded.site.hops.generations[-1].scope
            assert scope not in seen
            seen.add(scope)


@pytest.mark.parametrize(
    ("own", "priority", "expected"),
    [
        ("interactive", -3, "interactive"),
        ("interactive", 0, "interactive"),
        ("interactive", 1, "normal"),
        ("interactive", 2, "batch"),
        ("normal", 1, "batch"),
        ("gold", 1, "batch"),
        ("batch", 9, "batch"),
        ("batch", -9, "batch"),
    ],
)
async def test_a_priority_lowers_the_class_of_a_key_and_never_raises_it(
    guard: Guard, own: str, priority: int, expected: str
) -> None:
    guarded = guard("x", EOS)
    await guarded.ask(await guarded.key(priority_class=own), priority=priority)
    assert guarded.site.hops.wants[-1].priority_class == expected
    assert guarded.site.hops.generations[-1].priority == expected


async def test_router_and_engine_hear_tenant_and_class(guard: Guard) -> None:
    guarded = guard("x", EOS)
    await guarded.ask(await guarded.key(tenant="acme", priority_class="batch"))
    want = guarded.site.hops.wants[-1]
    assert (want.tenant, want.priority_class) == ("acme", "batch")
    generation = guarded.site.hops.generations[-1]
    assert (generation.tenant, generation.priority) == ("acme", "batch")


async def test_a_key_says_how_long_its_prompts_are_kept(guard: Guard) -> None:
    guarded = guard("x", EOS)
    for retention in ("agent", "none"):
        assert (await guarded.ask(await guarded.key(retention=retention))).status_code == 200
        assert guarded.site.hops.generations[-1].retention == retention
    assert (await guarded.ask(await guarded.key())).status_code == 200
    assert guarded.site.hops.generations[-1].retention == "chat"
    with pytest.raises(BadRequest, match="retention: expected one of chat"):
        await guarded.key(retention="forever")


@pytest.mark.parametrize(
    ("path", "of_key", "kept"),
    [
        ("/v1/messages", "chat", "agent"),
        ("/anthropic/v1/messages", "chat", "agent"),
        ("/v1/completions", "chat", "none"),
        ("/v1/chat/completions", "chat", "chat"),
        ("/v1/messages", "none", "none"),
        ("/v1/messages", "pinned", "pinned"),
        ("/v1/completions", "agent", "agent"),
    ],
)
def test_a_route_decides_for_keys_of_the_usual_class(path: str, of_key: str, kept: str) -> None:
    routes = (("*/messages", "agent"), ("/v1/completions", "none"), ("*/messages", "none"))
    assert retention_of(path, of_key, routes) == kept


async def test_the_door_knows_the_routes(guard: Guard, open_office_here: Any) -> None:
    routes = (("*/chat/completions", "agent"),)
    guarded = guard("x", EOS, behind=await open_office_here(routes=routes))
    for of_key, kept in (("chat", "agent"), ("none", "none")):
        assert (await guarded.ask(await guarded.key(retention=of_key))).status_code == 200
        assert guarded.site.hops.generations[-1].retention == kept


async def test_a_class_that_engines_do_not_know_is_normal_to_them(guard: Guard) -> None:
    guarded = guard("x", EOS)
    await guarded.ask(await guarded.key(priority_class="gold"))
    assert guarded.site.hops.wants[-1].priority_class == "gold"
    assert guarded.site.hops.generations[-1].priority == "normal"


async def test_a_held_gateway_takes_nothing_new_and_is_not_ready(guard: Guard) -> None:
    guarded = guard("x", EOS)
    guarded.office.door.is_held = True
    reply = await guarded.ask(None)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in reply.headers
    assert (await guarded.http.get("/readyz")).status_code == 503
    guarded.office.door.is_held = False
    assert (await guarded.ask(None)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_operator_ends_a_request_and_its_client_is_told(
    guard: Guard, stream: bool
) -> None:
    guarded = guard("one two three four", EOS)
    guarded.site.hops.holds = {"token 3"}
    asking = asyncio.create_task(guarded.ask(None, stream=stream))
    await guarded.site.hops.reached("token 3")
    (running,) = guarded.office.clerk.visits.values()
    assert running.spent.completion == 2
    assert running.abort()
    assert not running.abort()
    reply = await asking
    assert b'"code":"aborted"' in reply.content
    assert reply.status_code == (200 if stream else 503)
    assert b"[DONE]" not in reply.content


async def test_failed_attempts_are_in_the_audit_log_without_the_key(guard: Guard) -> None:
    guarded = guard("x", EOS)
    key = await guarded.key()
    wrong = f"sk-{key.split('-')[1]}-{'x' * 49}"
    await guarded.ask(wrong)
    await guarded.ask(None)
    await guarded.office.clerk.settled()
    failed = await guarded.office.audit.page(action="auth.failed")
    assert len(failed) == 1
    assert failed[0].act.origin == "127.0.0.1"
    assert wrong not in repr(failed)


async def test_users_are_kept_as_a_keyed_hash_and_can_be_forgotten(guard: Guard) -> None:
    guarded = guard("x", EOS)
    await guarded.ask(None, user_id="someone@example.org")
    await guarded.office.clerk.settled()
    door, usage = guarded.office.door, guarded.office.usage
    assert await usage.forget(user_hash="someone@example.org") == 0
    assert await usage.forget(user_hash=door.hash_user("someone@example.org")) == 1


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (20_000, "20ms"),
        (1_200_000, "1.2s"),
        (360_000_000, "6m0s"),
        (61_500_000, "1m1.5s"),
    ],
)
def test_times_are_spelled_as_clients_read_them(time_us: int, text: str) -> None:
    assert duration(time_us) == text
