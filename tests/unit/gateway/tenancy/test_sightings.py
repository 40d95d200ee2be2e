"""What an operator sees of callers: limits that refuse, keys by their id, users by a hash."""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from diptych.gateway.access import Access
from diptych.gateway.tenancy.keys import Scope
from diptych.telemetry import logs
from diptych.text.markers import Marker

EOS = Marker.EOS
Guard = Callable[..., Any]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All logs, as JSON."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", text := io.StringIO())
    logs.setup("gateway-1", "info", "json", "gateway")
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)


def watched(guarded: Any) -> Any:
    access = Access(guarded.app, guarded.site.pipeline.measures)
    transport = httpx.ASGITransport(access, raise_app_exceptions=False)
    guarded.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    return guarded


def samples(guarded: Any, name: str) -> list[str]:
    text: str = guarded.site.pipeline.measures.metrics.text().decode()
    return [line for line in text.splitlines() if line.startswith(f"{name}{{")]


@pytest.mark.parametrize(
    ("limits", "status", "dimension"),
    [
        ({"requests_per_min": 1}, 429, "requests_per_min"),
        ({"tokens_per_min": 1}, 429, "tokens_per_min"),
        ({"tokens_per_day": 1}, 402, "tokens_per_day"),
        ({"tokens_per_month": 1}, 402, "tokens_per_month"),
    ],
)
async def test_the_limit_that_refused_is_counted(
    guard: Guard, limits: dict[str, int], status: int, dimension: str
) -> None:
    guarded = watched(guard("x", EOS))
    key = await guarded.key(**limits)
    seen = [(await guarded.ask(key)).status_code for _ in range(2)]
    assert seen[-1] == status
    refused = seen.count(status)
    assert samples(guarded, "llm_ratelimit_total") == [
        f'llm_ratelimit_total{{dimension="{dimension}",role="gateway"}} {float(refused)}'
    ]


async def test_a_line_names_the_key_and_neither_its_secret_nor_the_user(
    guard: Guard, written: io.StringIO
) -> None:
    guarded = watched(guard("x", EOS))
    key = await guarded.key(tenant="acme")
    _, key_id, secret = key.split("-", 2)
    assert (await guarded.ask(key, user_id="jane@example.org")).status_code == 200
    assert (await guarded.ask(key[:-1] + "!")).status_code == 401
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    answered, refused = (line["fields"] for line in lines if line["logger"].endswith("access"))
    assert (answered["key"], answered["tenant"]) == (key_id, "acme")
    assert answered["user_hash"] == guarded.office.door.hash_user("jane@example.org")
    assert refused["status"] == 401 and "key" not in refused
    assert secret not in written.getvalue() and "jane" not in written.getvalue()


async def test_reasons_of_the_router_are_for_keys_that_may_debug(guard: Guard) -> None:
    guarded = guard("x", EOS)
    headers = {"x-diptych-timings": "1"}
    for scopes in ((Scope.INFERENCE,), (Scope.INFERENCE, Scope.DEBUG)):
        headers["authorization"] = f"Bearer {await guarded.key(*scopes)}"
        url, body = "/v1/chat/completions", guarded.site.body()
        timings = (await guarded.http.post(url, json=body, headers=headers)).json()["timings"]
        assert ("route_reasons" in timings) == (Scope.DEBUG in scopes)
        assert timings["route"] == "split"
