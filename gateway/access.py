"""Sees every HTTP request in and out: counts it, logs one line of it, tells its trace.

The line says who, what, how long and how much; never what was asked or answered.
"""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from diptych.gateway import spans
from diptych.gateway.admin.console import PREFIX as CONSOLE
from diptych.gateway.measures import OTHER, Measures
from diptych.gateway.notes import Notes
from diptych.gateway.playground import PREFIX
from diptych.gateway.tenancy.door import OPEN_PATHS
from diptych.gateway.tenancy.usage import Record
from diptych.gateway.tenancy.visit import CLIENT_LEFT, IN_SCOPE, Visit
from diptych.telemetry.traces import Trace, Tracer, traceparent_var

log = logging.getLogger(__name__)

CLIENT_GONE = "client_gone"  # why a stream was cut: the client left

_BASES = ("/anthropic/v1", "/beta/v1", "/beta", "/v1")
_GENERATING = ("/chat/completions", "/completions", "/responses", "/messages")
_TRACED = tuple(f"/v1{path}" for path in _GENERATING)
_OTHERS = (
    "/chat/completions/render", "/messages/count_tokens", "/models", "/tokenize", "/detokenize",
)  # fmt: skip

_ADMIN = "/admin/v1/"
_ADMINISTERED = (
    "audit", "cache", "config", "data", "gateway", "keys", "log-level", "operations", "requests",
    "role", "scale", "status", "tenants", "usage", "watch", "workers",
)  # fmt: skip

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def admin_route_of(path: str) -> str:
    """The same for the operator's port: what a path is about, without its ids."""
    about = path.removeprefix(_ADMIN).partition("/")[0]
    if path.startswith(_ADMIN) and about in _ADMINISTERED:
        return _ADMIN + about
    if path.startswith(CONSOLE):
        return CONSOLE
    return path if path in OPEN_PATHS else OTHER


def route_of(path: str) -> str:
    """One name for all spellings of a path that we serve; `other` for those that strangers try."""
    if path in OPEN_PATHS:
        return path
    if path.startswith(PREFIX):
        return PREFIX
    base = next((base for base in _BASES if path.startswith(f"{base}/")), "")
    rest = path.removeprefix(base)
    for stem, parameter in (("/models/", "{name}"), ("/responses/", "{id}")):
        if rest.startswith(stem):
            return f"/v1{stem}{parameter}"
    return f"/v1{rest}" if rest in _GENERATING + _OTHERS else OTHER


class Access:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: App,
        measures: Measures,
        tracer: Tracer | None = None,
        name: Callable[[str], str] = route_of,
    ) -> None:
        """`name` makes a route of a path."""
        self._app = app
        self._name = name
        self._tracer = tracer
        self._measures = measures

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        route = self._name(scope["path"])
        watched = _Watched(send)
        trace = self._begin(route, scope)
        self._measures.inflight[route] += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self._measures.inflight[route] -= 1
            self._over(scope, route, watched, trace)
        return None

    def _begin(self, route: str, scope: Message) -> Trace | None:
        """What generates is traced; all that it leads to finds the trace in the context."""
        if self._tracer is None or route not in _TRACED:
            return None
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
        trace = self._tracer.begin(spans.ROOT, headers)
        traceparent_var.set(trace.traceparent)
        return trace

    def _over(self, scope: Message, route: str, watched: "_Watched", trace: Trace | None) -> None:
        visit = scope.get(IN_SCOPE)
        notes, record = (
            (visit.notes, visit.record()) if isinstance(visit, Visit) else (Notes(), None)
        )
        if watched.is_stream and not watched.is_complete and not notes.cut:
            notes.cut = CLIENT_GONE
        status = watched.status or CLIENT_LEFT
        if not watched.status and record and not notes.courses:
            self._measures.left_early()
        model, reasoning = (record.model, record.reasoning) if record else ("", 0)
        self._measures.visited(route, status, model, notes, reasoning)
        _write(
            logging.DEBUG if route in OPEN_PATHS else logging.INFO,  # probes come all the time
            method=scope["method"],
            route=route,
            status=status,
            seconds=watched.spent_s,
            first_byte_seconds=watched.first_byte_s,
            trace_id=trace.trace_id if trace else "",
            **(_of_visit(record, notes) if record else {}),
        )
        if trace is not None and self._tracer is not None:
            for span in spans.below(notes):
                self._tracer.tell(span, trace.traceparent)
            attributes = spans.of_request(scope["method"], route, status, record)
            trace.end(attributes, notes.cut or (notes.error if status >= 500 else ""))


def _of_visit(record: Record, notes: Notes) -> dict[str, object]:
    """Who asked, and what it came to."""
    fields: dict[str, object] = {
        "key": record.key_id,
        "tenant": record.tenant,
        "user_hash": record.user_hash,
        "model": record.model,
        "error": notes.error,
        "cut": notes.cut,
    }
    if record.prompt:
        fields |= {
            "finish": record.finish,
            "prompt_tokens": record.prompt,
            "cached_tokens": record.cached,
            "completion_tokens": record.completion,
            "reasoning_tokens": record.reasoning,
        }
    return fields


def _write(level: int, **fields: object) -> None:
    """One line of the fields that say something."""
    known = {name: value for name, value in fields.items() if value not in ("", None)}
    log.log(level, " ".join(f"{name}=%s" for name in known), *known.values())


class _Watched:
    """A send that knows what has left, and when."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._began_s = time.monotonic()
        self.first_byte_s: float | None = None
        self.status = 0
        self.is_stream = False
        self.is_complete = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """No coroutine of its own: it stands before every chunk of a stream."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self.is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        else:
            if self.first_byte_s is None:
                self.first_byte_s = self.spent_s
            self.is_complete = not message.get("more_body", False)
        return self._send(message)

    @property
    def spent_s(self) -> float:
        return round(time.monotonic() - self._began_s, 6)
