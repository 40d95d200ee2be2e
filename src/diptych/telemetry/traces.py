"""Traces of requests: off unless a collector is named, and never with content.

Spans are told when a request is over, from times that are noted anyway, so that an unwatched
request pays nothing. Times are `time.monotonic`'s. Only `otel.py` knows OpenTelemetry, and
`collector.py` imports it where it is needed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from diptych.core.errors import DiptychError

Attribute = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Attribute]

traceparent_var: ContextVar[str] = ContextVar("traceparent", default="")
"""Of the request that is being worked on, as the W3C spells it; "" if nobody traces it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request, now that it is over."""

    name: str
    began_s: float
    ended_s: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""  # the code of what it failed with


class Trace(Protocol):
    """One request's span, below which all others are."""

    @property
    def traceparent(self) -> str:
        """What others need so that their spans are below ours."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    def end(self, attributes: Attributes, error: str = "") -> None:
        """All of it is over."""


class Tracer(Protocol):
    """Begins traces, and sends them away in the background."""

    def begin(self, name: str, headers: Mapping[str, str]) -> Trace:
        """From now on; part of the trace that `traceparent` among the headers names, if any."""

    def tell(self, span: Span, traceparent: str) -> None:
        """A part of the request of `traceparent` is over."""

    def close(self) -> None:
        """Send what is left. Blocks for some seconds if nobody takes it."""


@contextmanager
def traced(tracer: Tracer | None, name: str, attributes: Attributes) -> Iterator[None]:
    """Tell of the body as a part of the request that is worked on, if somebody traces it."""
    parent = traceparent_var.get()
    if tracer is None or not parent:
        yield
        return
    began_s, error, is_over = time.monotonic(), "", False
    try:
        yield
        is_over = True
    except DiptychError as failure:
        error = failure.code
        raise
    finally:
        told = {**attributes, "diptych.is_cancelled": not (is_over or error)}
        tracer.tell(Span(name, began_s, time.monotonic(), told, error), parent)
