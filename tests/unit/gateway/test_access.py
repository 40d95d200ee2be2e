"""What is counted, logged and traced of a request, however it ends."""

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from diptych.core.errors import Lost
from diptych.gateway.access import Access, route_of
from diptych.gateway.stream import Patience
from diptych.telemetry import logs
from diptych.telemetry.traces import Attributes, Span
from diptych.text.markers import Marker
from diptych.text.tools import ToolCall, invocations

TEXT = ("one two three four five six", Marker.EOS)
CHAT = "/v1/chat/completions"


@dataclass
class Told:
    """A tracer that keeps what it is told, and the trace."""

    trace_id: str = "0" * 31 + "1"
    traceparent: str = "parent"
    headers: list[Mapping[str, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # what those behind us find in the context
    ended: list[tuple[Attributes, str]] = field(default_factory=list)

    def begin(self, name: str, headers: Mapping[str, str]) -> "Told":
        self.headers.append(headers)
        return self

    def tell(self, span: Span, traceparent: str) -> None:
        assert traceparent == self.traceparent
        self.spans.append(span)

    def end(self, attributes: Attributes, error: str = "") -> None:
        self.ended.append((attributes, error))

    def close(self) -> None: ...


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What the access log has said."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", written := io.StringIO())
    logs.setup("gateway-1", "info", "json", "gateway")

    def read() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in written.getvalue().splitlines()]
        return [line for line in found if line["logger"] == "diptych.gateway.access"]

    yield read
    root.handlers[:] = handlers
    root.setLevel(level)


def watched(site: Any, tracer: Told | None = None) -> httpx.AsyncClient:
    """The site behind an access log; it stays open as long as the site."""
    site.app = access = Access(site.app, site.pipeline.measures, tracer)
    transport = httpx.ASGITransport(access, raise_app_exceptions=False)
    site.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    return site.http


def samples(site: Any, name: str) -> dict[str, float]:
    text: str = site.pipeline.measures.metrics.text().decode()
    found = (line.rpartition(" ") for line in text.splitlines() if line.startswith(name))
    return {
        re.sub(r'role="gateway",|,?role="gateway"', "", labels.removeprefix(name)): float(value)
        for labels, _, value in found
    }


def test_every_route_of_the_application_has_a_name(serve: Any) -> None:
    switch = serve(*TEXT).app._app
    paths = [*switch._endpoints, *(route.path for route in switch._pages.routes)]
    assert CHAT in paths and "/livez" in paths
    assert {route_of(path) for path in paths} & {"other"} == set()
    assert {route_of(path) for path in paths if path.endswith(CHAT[3:])} == {CHAT}


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/beta/v1/chat/completions", CHAT),
        ("/chat/completions", CHAT),
        ("/models/a/b", "/v1/models/{name}"),
        ("/v1/models", "/v1/models"),
        ("/responses/resp_1/cancel", "/v1/responses/{id}"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/readyz", "/readyz"),
        ("/v1/chat/completions/x", "other"),
        ("/wp-login.php", "other"),
        ("/betaling", "other"),
    ],
)
def test_a_route_is_named_once_and_what_strangers_try_is_not(path: str, route: str) -> None:
    assert route_of(path) == route


async def test_an_answer_is_counted_and_told_in_one_line_without_content(
    serve: Any, lines: Any
) -> None:
    site = serve(*TEXT, cached_tokens=2)
    http = watched(site)
    body = site.body(user_id="jane@example.org")
    reply = await http.post(CHAT, json=body)
    usage = reply.json()["usage"]
    [line] = lines()
    assert line["request_id"] == reply.headers["x-request-id"]
    fields = line["fields"]
    assert fields.pop("seconds") >= fields.pop("first_byte_seconds") > 0
    assert fields == {
        "method": "POST",
        "route": CHAT,
        "status": 200,
        "key": "anonymous",
        "tenant": "default",
        "model": "tiny",
        "finish": "stop",
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 2,
        "completion_tokens": usage["completion_tokens"],
        "reasoning_tokens": 0,
    }
    for content in ("Hello", "one two", "jane"):
        assert content not in json.dumps(line)
    labels = f'{{model="tiny",route="{CHAT}",status="200"}}'
    assert samples(site, "llm_http_requests_total") == {labels: 1}
    assert samples(site, "llm_http_inflight") == {f'{{route="{CHAT}"}}': 0}
    assert samples(site, "llm_tokenize_seconds_count") == {"{}": 1}


async def test_what_is_under_way_is_counted_until_it_is_over(serve: Any, visit: Any) -> None:
    site = serve(*TEXT)
    site.hops.holds.add("token 3")
    watched(site)
    client = visit(site, stream=True)
    await site.hops.reached("token 3")
    assert samples(site, "llm_http_inflight") == {f'{{route="{CHAT}"}}': 1}
    site.hops.release()
    await client.over()
    assert samples(site, "llm_http_inflight") == {f'{{route="{CHAT}"}}': 0}
    assert samples(site, "llm_stream_aborts_total") == {}


async def test_a_stranger_makes_no_labels(serve: Any, lines: Any) -> None:
    site = serve(*TEXT)
    http = watched(site)
    await http.post(CHAT, json=site.body(model="made-up"))
    await http.get("/secret-path-7")
    counted = samples(site, "llm_http_requests_total")
    assert counted == {
        f'{{model="",route="{CHAT}",status="404"}}': 1,
        '{model="",route="other",status="404"}': 1,
    }
    assert "made-up" not in (told := json.dumps(lines())) and "secret-path-7" not in told


async def test_probes_are_counted_and_not_logged(serve: Any, lines: Any) -> None:
    site = serve(*TEXT)
    assert (await watched(site).get("/livez")).status_code == 200
    assert lines() == []
    assert samples(site, "llm_http_requests_total") == {'{model="",route="/livez",status="200"}': 1}


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_client_that_leaves_is_an_abort_only_of_a_stream_that_began(
    serve: Any, visit: Any, lines: Any, is_started: bool
) -> None:
    site = serve(*TEXT)
    site.hops.holds.add("token 3" if is_started else "prefill")
    watched(site)
    client = visit(site, stream=True)
    await site.hops.reached("token 3" if is_started else "prefill")
    if is_started:
        await client.heard(b"data: ")
    client.leave()
    await client.over()
    expected = {'{why="client_gone"}': 1} if is_started else {}
    assert samples(site, "llm_stream_aborts_total") == expected
    [line] = lines()
    assert line["fields"]["status"] == (200 if is_started else 499)


async def test_a_client_that_leaves_before_anything_runs_left_while_encoding(
    serve: Any, visit: Any
) -> None:
    site = serve(*TEXT)
    watched(site)
    client = visit(site, has_body=False)
    client.leave()
    await client.over()
    assert samples(site, "llm_aborts_total") == {'{stage="encode"}': 1}


async def test_a_stream_that_fails_is_an_abort_with_its_code(serve: Any, lines: Any) -> None:
    site = serve(*TEXT)
    for number in range(3, 9):  # each attempt gets a little further
        site.hops.failures[f"token {number}"] = [Lost("gone")]
    events = site.parse((await watched(site).post(CHAT, json=site.body(stream=True))).text)
    assert events[-1]["error"]["code"] == "worker_lost"
    assert samples(site, "llm_stream_aborts_total") == {'{why="worker_lost"}': 1}
    [line] = lines()
    assert (line["fields"]["cut"], line["fields"]["finish"]) == ("worker_lost", "error")


async def test_who_does_not_read_is_an_abort(serve: Any, visit: Any) -> None:
    site = serve(*TEXT, patience=Patience(unread_s=0.05))
    site.hops.holds.add("token 3")
    watched(site)
    client = visit(site, stream=True)
    await client.heard(b"data:")
    client.stop_reading()
    site.hops.release()
    await client.over()
    assert samples(site, "llm_stream_aborts_total") == {'{why="unread"}': 1}


async def test_comments_of_a_silent_stream_are_counted(serve: Any, visit: Any) -> None:
    site = serve(*TEXT, patience=Patience(headers_s=0.02, silence_s=0.02))
    site.hops.holds.add("prefill")
    watched(site)
    client = visit(site, stream=True)
    await client.heard(b": keep-alive\n\n: keep-alive\n\n")
    site.hops.release()
    await client.over()
    sent = client.body.count(b": keep-alive")
    assert samples(site, "llm_keepalives_total") == {"{}": sent}


async def test_ignored_fields_are_counted_by_name_only_if_we_know_the_name(serve: Any) -> None:
    site = serve(*TEXT)
    await watched(site).post(CHAT, json=site.body(store=True, verbosity="low", tempersture=1, x=2))
    assert samples(site, "llm_ignored_params_total") == {
        '{name="store"}': 1,
        '{name="verbosity"}': 1,
        '{name="other"}': 2,
    }


async def test_reasoning_is_part_of_the_tokens(serve: Any) -> None:
    site = serve("let me think", Marker.END_THINK, "four", Marker.EOS)
    reply = await watched(site).post(CHAT, json=site.body(thinking={"type": "enabled"}))
    reasoning = reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning > 0
    assert samples(site, "llm_tokens_total")['{type="reasoning"}'] == reasoning


async def test_a_trace_has_a_span_for_each_phase_and_no_content(serve: Any, lines: Any) -> None:
    site, told = serve(*TEXT, cached_tokens=2), Told()
    headers = {"traceparent": "00-ab-cd-01"}
    reply = await watched(site, told).post(CHAT, json=site.body(), headers=headers)
    usage = reply.json()["usage"]
    assert told.headers[0]["traceparent"] == "00-ab-cd-01"
    assert [span.name for span in told.spans] == [
        "tokenize",
        "queue",
        "prefill",
        "handoff",
        "decode",
    ]
    for span in told.spans:
        assert span.began_s <= span.ended_s and not span.error
    queue, prefill, handoff, decode = told.spans[1:]
    assert queue.ended_s == prefill.began_s and prefill.ended_s == handoff.began_s
    assert decode.attributes["diptych.attempt"] == 1
    assert prefill.attributes["diptych.worker"] != decode.attributes["diptych.worker"]
    [(attributes, error)] = told.ended
    assert error == "" and attributes == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "diptych.request_id": reply.headers["x-request-id"],
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "diptych",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.reasoning.output_tokens": 0,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert lines()[0]["fields"]["trace_id"] == told.trace_id


async def test_an_error_of_ours_is_an_error_of_the_trace_and_a_mistake_of_theirs_is_none(
    serve: Any,
) -> None:
    site, told = serve(*TEXT), Told()
    http = watched(site, told)
    site.hops.failures["prefill"] = [Lost("gone"), Lost("gone"), Lost("gone")]
    assert (await http.post(CHAT, json=site.body())).status_code == 503
    assert (await http.post(CHAT, json=site.body(max_tokens=-1))).status_code == 400
    assert [error for _, error in told.ended] == ["worker_lost", ""]
    assert told.spans[-1].error == "worker_lost"


async def test_probes_are_not_traced(serve: Any) -> None:
    site, told = serve(*TEXT), Told()
    await watched(site, told).get("/livez")
    assert told.headers == []


async def test_calls_of_tools_are_counted_with_what_was_odd_about_them(serve: Any) -> None:
    made = [ToolCall("", "time", "{}"), ToolCall("", "nonsense", "{}")]
    site = serve(*invocations(made), Marker.EOS)
    tools = [{"type": "function", "function": {"name": "time"}}]
    site.fleet = replace(site.fleet, max_model_len=4096)
    reply = await watched(site).post(CHAT, json=site.body(tools=tools))
    calls = reply.json()["choices"][0]["message"]["tool_calls"]
    assert samples(site, "llm_tool_parse_total") == {
        '{result="ok"}': len(calls),
        '{result="unknown_tool"}': 1,
    }


async def test_what_is_odd_in_an_answer_without_tools_is_counted_too(serve: Any) -> None:
    site = serve("x", Marker.USER, "I go on", Marker.EOS)
    await watched(site).post(CHAT, json=site.body())
    assert samples(site, "llm_tool_parse_total") == {'{result="role"}': 1}
