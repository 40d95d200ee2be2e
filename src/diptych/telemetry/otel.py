"""Traces for an OpenTelemetry collector. Needs the extra `otel`.

Our own provider, nothing global. The collector's variables that OpenTelemetry itself defines
(`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`) hold here, too.
"""

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from diptych import __version__
from diptych.telemetry.traces import Attributes, Span

PATH = "/v1/traces"  # of OTLP over HTTP, unless the endpoint names another
EXPORT_TIMEOUT_S = 5.0
DELAY_MS = 1000.0  # how long spans wait for others

_W3C = TraceContextTextMapPropagator()


def exporter(endpoint: str) -> SpanExporter:
    """To a collector that speaks OTLP over HTTP."""
    return OTLPSpanExporter(endpoint=url_of(endpoint), timeout=EXPORT_TIMEOUT_S)


def url_of(endpoint: str) -> str:
    """Where spans go."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH


class OtelTracer:
    """A `Tracer`. What a collector does not take in time is dropped, and OpenTelemetry says so."""

    def __init__(self, exporter: SpanExporter, role: str, instance: str) -> None:
        resource = Resource.create(
            {
                "service.namespace": "diptych",
                "service.name": f"diptych-{role}",
                "service.instance.id": instance,
                "service.version": __version__,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MS)
        )
        self._tracer = self._provider.get_tracer("diptych", __version__)

    def begin(self, name: str, headers: Mapping[str, str]) -> "OtelTrace":
        span = self._tracer.start_span(name, _W3C.extract(dict(headers)), trace.SpanKind.SERVER)
        return OtelTrace(span)

    def tell(self, span: Span, traceparent: str) -> None:
        offset_ns = time.time_ns() - time.monotonic_ns()
        told = self._tracer.start_span(
            span.name,
            _W3C.extract({"traceparent": traceparent}),
            attributes=span.attributes,
            start_time=int(span.began_s * 1e9) + offset_ns,
        )
        _fail(told, span.error)
        told.end(int(span.ended_s * 1e9) + offset_ns)

    def close(self) -> None:
        self._provider.shutdown()


class OtelTrace:
    """A `Trace`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._span))
        return carrier["traceparent"]

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def end(self, attributes: Attributes, error: str = "") -> None:
        self._span.set_attributes(attributes)
        _fail(self._span, error)
        self._span.end()


def _fail(span: trace.Span, error: str) -> None:
    if error:
        span.set_attribute("error.type", error)
        span.set_status(trace.StatusCode.ERROR)
