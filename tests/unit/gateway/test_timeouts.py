"""The time limit that a client sets, and the deadlines that it cannot move."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.deadlines import TIMEOUT_HEADER, Deadlines, client_timeout_s
from diptych.text.markers import Marker

EOS = Marker.EOS
PATH = "/v1/chat/completions"


@pytest.mark.parametrize("stage", ["queue", "prefill", "first", "start", "token 3"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_ends_when_its_own_time_is_over(
    serve: Any, stage: str, stream: bool
) -> None:
    site = serve("one two three four", EOS)
    site.hops.holds = {stage}
    headers = {TIMEOUT_HEADER: "0.1"}
    began_s = time.monotonic()
    reply = await site.http.post(PATH, json=site.body(stream=stream), headers=headers)
    assert time.monotonic() - began_s < 5
    has_begun = stream and stage in ("start", "token 3")  # then its status is out
    assert reply.status_code == (200 if has_begun else 504)
    assert '"code":"upstream_timeout"' in reply.text
    assert '"type":"timeout_error"' in reply.text
    assert "[DONE]" not in reply.text
    await site.pipeline.close()
    assert site.hops.is_at_baseline


async def test_time_that_suffices_changes_nothing(serve: Any) -> None:
    site = serve("one", EOS)
    reply = await site.http.post(PATH, json=site.body(), headers={TIMEOUT_HEADER: "30"})
    assert reply.status_code == 200


async def test_a_long_limit_lengthens_no_deadline_of_ours(serve: Any) -> None:
    site = serve("one", EOS, deadlines=Deadlines(queue_s=0.05))
    site.hops.holds = {"queue"}
    reply = await site.http.post(PATH, json=site.body(), headers={TIMEOUT_HEADER: "3600"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_timeout")
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("priority", "setting_s", "waits_s"),
    [
        ("interactive", 600, 30), ("normal", 600, 600), ("batch", 600, 3600),
        ("", 900, 900), ("gold", 900, 900), ("interactive", 20, 20), ("batch", 20, 3600),
    ],
)  # fmt: skip
def test_how_long_a_request_waits_follows_its_class(
    priority: str, setting_s: float, waits_s: float
) -> None:
    asked = Deadlines(queue_s=setting_s).of_class(priority)
    assert asked == replace(Deadlines(), queue_s=waits_s)


@pytest.mark.parametrize(("deferred", "waits_s"), [(0, 600), (1, 3600)])
async def test_the_router_hears_how_long_its_class_waits(
    serve: Any, deferred: int, waits_s: float
) -> None:
    site = serve("one", EOS)
    assert (await site.http.post(PATH, json=site.body(priority=deferred))).status_code == 200
    assert site.hops.wants[-1].deadline_s == waits_s


async def test_a_batch_request_outwaits_the_operators_setting(serve: Any) -> None:
    site = serve("one", EOS, deadlines=Deadlines(queue_s=0.05))
    site.hops.holds = {"queue"}
    headers = {TIMEOUT_HEADER: "0.2"}
    reply = await site.http.post(PATH, json=site.body(priority=1), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")


@pytest.mark.parametrize("value", ["", "0", "0.0", "-1", "soon", "1e3", "inf", "nan", "9" * 30])
async def test_what_is_no_time_is_refused(serve: Any, value: str) -> None:
    site = serve("one", EOS)
    reply = await site.http.post(PATH, json=site.body(), headers={TIMEOUT_HEADER: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, TIMEOUT_HEADER)
    assert len(error["message"]) < 100 and not site.hops.wants


def test_no_header_is_no_limit() -> None:
    assert client_timeout_s({}) is None
    assert client_timeout_s({TIMEOUT_HEADER: " 1.5 "}) == 1.5
    with pytest.raises(BadRequest):
        client_timeout_s({TIMEOUT_HEADER: "1 2"})


async def test_the_callers_tokens_are_settled_when_its_time_is_over(serve: Any) -> None:
    site = serve("one two three four", EOS)
    site.hops.holds = {"token 3"}
    headers = {TIMEOUT_HEADER: "0.1"}
    await asyncio.gather(
        *(site.http.post(PATH, json=site.body(n=2), headers=headers) for _ in range(3))
    )
    await site.pipeline.close()
    assert site.traffic.num_running == 0 and site.hops.is_at_baseline
