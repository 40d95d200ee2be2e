"""Spans that arrive at a collector, over a real wire."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from diptych.core.errors import Lost, Misconfigured
from diptych.telemetry.collector import open_tracer
from diptych.telemetry.otel import url_of
from diptych.telemetry.traces import Span, Tracer, traced, traceparent_var
from diptych.testing.collector import Collector, collector

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


@pytest.fixture
def tracer(receiver: Collector) -> Iterator[Tracer]:
    opened = open_tracer(receiver.endpoint, "gateway", "gateway-1")
    assert opened is not None
    yield opened
    opened.close()


def test_who_names_no_collector_has_no_tracer_and_loads_no_sdk() -> None:
    program = (
        "import sys, diptych.gateway.__main__, diptych.telemetry.collector as c\n"
        "assert c.open_tracer(None, 'gateway', 'gateway-1') is None\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_trace_goes_on_from_the_clients_and_out_to_others(
    receiver: Collector, tracer: Tracer
) -> None:
    trace = tracer.begin("gateway", {"traceparent": CLIENTS, "other": "x"})
    assert trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
    version, trace_id, span_id, flags = trace.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", trace.trace_id, "01")
    trace.end({"http.response.status_code": 200})
    tracer.close()
    [span] = receiver.of_trace(trace.trace_id)
    assert (span.name, span.service) == ("gateway", "diptych-gateway")
    assert (span.span_id, span.parent_id) == (span_id, "b7ad6b7169203331")
    assert span.attributes == {"http.response.status_code": 200}
    assert not span.is_error


def test_what_is_told_afterwards_keeps_its_times_and_its_parent(
    receiver: Collector, tracer: Tracer
) -> None:
    trace = tracer.begin("gateway", {})
    now_s = time.monotonic()
    tracer.tell(Span("prefill", now_s - 3, now_s - 1, {"n": 7}, "worker_lost"), trace.traceparent)
    trace.end({})
    tracer.close()
    by_name = {span.name: span for span in receiver.of_trace(trace.trace_id)}
    root, part = by_name["gateway"], by_name["prefill"]
    assert root.parent_id == "" and part.parent_id == root.span_id
    assert (part.ended_ns - part.began_ns) / 1e9 == pytest.approx(2, abs=1e-6)
    assert (time.time_ns() - part.ended_ns) / 1e9 == pytest.approx(1, abs=0.9)
    assert part.is_error and part.attributes == {"n": 7, "error.type": "worker_lost"}


def test_who_asks_not_to_be_traced_is_not(receiver: Collector, tracer: Tracer) -> None:
    trace = tracer.begin("gateway", {"traceparent": CLIENTS[:-2] + "00"})
    tracer.tell(Span("queue", 1, 2), trace.traceparent)
    trace.end({})
    tracer.close()
    assert receiver.spans == []


def test_a_traceparent_that_is_none_begins_a_trace(receiver: Collector, tracer: Tracer) -> None:
    trace = tracer.begin("gateway", {"traceparent": "00-zz-zz-01"})
    trace.end({})
    tracer.close()
    [span] = receiver.spans
    assert span.parent_id == "" and span.trace_id == trace.trace_id


@pytest.mark.parametrize("ends", ["well", "lost", "cancelled"])
async def test_a_body_is_told_however_it_ends(
    receiver: Collector, tracer: Tracer, ends: str
) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        traceparent_var.set(CLIENTS)
        with traced(tracer, "worker.start", {"a": 1}):
            begun.set()
            if ends == "lost":
                raise Lost("gone")
            if ends == "cancelled":
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    if ends == "cancelled":
        task.cancel()
    [result] = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, Lost) == (ends == "lost")
    await asyncio.to_thread(tracer.close)
    [span] = receiver.spans
    assert (span.name, span.is_error) == ("worker.start", ends == "lost")
    assert span.attributes["diptych.is_cancelled"] == (ends == "cancelled")
    assert span.attributes.get("error.type") == ("worker_lost" if ends == "lost" else None)


def test_what_nobody_traces_is_not_told(receiver: Collector, tracer: Tracer) -> None:
    with traced(tracer, "worker.start", {}), traced(None, "worker.start", {}):
        pass
    tracer.close()
    assert receiver.spans == []


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("https://c/x/traces", "https://c/x/traces"),
    ],
)
def test_the_endpoint_may_name_its_path(endpoint: str, url: str) -> None:
    assert url_of(endpoint) == url


def test_a_collector_that_is_away_ends_nothing_and_delays_little() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        tracer = open_tracer(f"http://127.0.0.1:{nobody.getsockname()[1]}", "gateway", "g")
        assert tracer is not None
        tracer.begin("gateway", {}).end({})
        began_s = time.monotonic()
        tracer.close()
    assert time.monotonic() - began_s < 10


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "diptych.telemetry.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(Misconfigured, match=r"--otlp-endpoint needs .*diptych\[otel\]"):
        open_tracer("http://127.0.0.1:4318", "gateway", "gateway-1")
