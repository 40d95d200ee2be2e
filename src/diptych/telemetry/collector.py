"""Which tracer a process has: none, or one that sends to a collector."""

from diptych.core.errors import Misconfigured
from diptych.telemetry.traces import Tracer


def open_tracer(endpoint: str | None, role: str, instance: str) -> Tracer | None:
    """None without an endpoint; Misconfigured if OpenTelemetry is not installed."""
    if endpoint is None:
        return None
    try:
        from diptych.telemetry.otel import OtelTracer, exporter
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise Misconfigured(
            f"--otlp-endpoint needs OpenTelemetry ({error.name} is missing): "
            "pip install 'diptych[otel]'"
        ) from error
    return OtelTracer(exporter(endpoint), role, instance)
