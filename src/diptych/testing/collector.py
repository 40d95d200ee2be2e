"""A collector of traces: a real receiver of OTLP over HTTP that keeps what it is sent."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # "" if it has none
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Any]
    is_error: bool


class Collector:
    """Keeps spans, and lets wait for them."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Received] = []
        self.sent: list[bytes] = []  # bodies, to look for what must not be in them
        self._changed = threading.Condition()

    def receive(self, body: bytes) -> None:
        """What a process has sent."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.sent.append(body)
            self.spans += list(_spans(request))
            self._changed.notify_all()

    def of_trace(self, trace_id: str) -> list[Received]:
        """Its spans, as far as they are here."""
        with self._changed:
            return [span for span in self.spans if span.trace_id == trace_id]

    def wait_for(self, trace_id: str, *names: str, limit_s: float = 20.0) -> list[Received]:
        """The spans of a trace, once these are among them."""

        def is_here() -> bool:
            here = {span.name for span in self.spans if span.trace_id == trace_id}
            return here >= set(names)

        with self._changed:
            assert self._changed.wait_for(is_here, limit_s), (
                f"of {names} there are only {sorted({span.name for span in self.spans})}"
            )
        return self.of_trace(trace_id)


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens on loopback."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_ours = self.path == "/v1/traces"
            if is_ours:
                kept.receive(body)
            self.send_response(200 if is_ours else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: tests read standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        told = {pair.key: _value(pair.value) for pair in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    service=told["service.name"],
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    attributes={pair.key: _value(pair.value) for pair in span.attributes},
                    is_error=span.status.code == Status.STATUS_CODE_ERROR,
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
