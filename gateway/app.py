"""The ASGI application: routes, and a front that gives every answer its headers and envelope."""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from diptych.core.errors import Broken, DiptychError
from diptych.gateway import playground
from diptych.gateway.anthropic.dialect import MessagesDialect
from diptych.gateway.body import MAX_BODY_BYTES, MAX_TEXT_BODY_BYTES
from diptych.gateway.chat.dialect import ChatDialect
from diptych.gateway.completions.dialect import CompletionDialect
from diptych.gateway.dialect import Dialect
from diptych.gateway.endpoint import Endpoint
from diptych.gateway.errors import ClientGone, envelope_for, headers, is_anthropic
from diptych.gateway.inquiry import Answer, Inquiry
from diptych.gateway.openapi.endpoint import Description
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.policy import Policy
from diptych.gateway.probes import Probes
from diptych.gateway.protocol import HANG_UP
from diptych.gateway.responses.dialect import ResponsesDialect, not_stored
from diptych.gateway.served import Served
from diptych.gateway.signpost import RENDER, Signpost
from diptych.gateway.stream import Patience, Receive, Send
from diptych.gateway.tenancy.door import HEADERS_IN_SCOPE, Door
from diptych.gateway.tokens.converter import Converter
from diptych.gateway.traffic import Traffic
from diptych.telemetry.logs import request_id_var

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Probe = Callable[[Request], Awaitable[Response]]

Headers = Iterable[tuple[bytes, bytes]]

POLICY_HEADER = b"x-diptych-policy"  # only while the router decides without reports
_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_BASES = ("/v1", "", "/beta/v1", "/beta")  # DeepSeek's clients know the later ones
_ANTHROPIC_BASES = ("/v1", "/anthropic/v1")
_WITH_IMAGES = ("/chat/completions", "/responses", "/messages", "/messages/count_tokens")


def build(
    served: Served,
    traffic: Traffic,
    pipeline: Pipeline,
    is_connected: Callable[[], bool],
    door: Door | None = None,
    patience: Patience | None = None,
    has_page: bool = True,
) -> App:
    """The application, ready for a server; `is_connected`: the router is heard now.

    Without a door everybody is let in. `has_page`: the playground is served at `/`.
    """
    policy = served.policy
    usual = Patience(style=policy.keepalive_style, blank_s=policy.nonstream_keepalive_s)
    endpoints = _endpoints(served, traffic, pipeline, patience or usual)
    pages = Router(redirect_slashes=False)
    for path, endpoint in endpoints.items():
        pages.routes.append(Route(path, endpoint, methods=["POST"]))  # tells other methods so
    probes = Probes(served, traffic, is_connected, lambda: door is not None and door.is_held)
    for path in (f"{base}/models" for base in _BASES):
        pages.add_route(path, probes.models, methods=["GET"])
        pages.add_route(path + "/{name:path}", probes.model, methods=["GET"])
    for path, probe in _probes(probes, policy).items():
        pages.add_route(path, probe, methods=["GET"])
    for path in (f"{base}/responses/{{id:path}}" for base in _BASES):
        pages.add_route(path, not_stored, methods=["GET", "POST", "DELETE"])
    pages.routes.extend(playground.routes() if has_page else ())
    app: App = Switch(endpoints, pages, Signpost(pages.routes))
    if door is not None:
        app = partial(door.pass_through, app)
    return Front(
        app,
        version=lambda: served.version,
        refused=pipeline.measures.rejected,
        degraded=lambda: served.degraded,
    )


def _endpoints(
    served: Served, traffic: Traffic, pipeline: Pipeline, patience: Patience
) -> dict[str, App]:
    """All that is posted to, by path."""
    found: dict[str, App] = {
        path: Endpoint(dialect, traffic, pipeline, patience, _max_bytes(path))
        for path, dialect in _dialects(served).items()
    }
    inquiries = _inquiries(served).items()
    return found | {path: Inquiry(ask, traffic, _max_bytes(path)) for path, ask in inquiries}


def _max_bytes(path: str) -> int:
    """Of a body."""
    has_images = path.endswith(_WITH_IMAGES) or path == RENDER
    return MAX_BODY_BYTES if has_images else MAX_TEXT_BODY_BYTES


def _dialects(served: Served) -> dict[str, Dialect]:
    """By path, each below the bases where its clients look for it."""
    ours: dict[str, Dialect] = {
        "/chat/completions": ChatDialect(served),
        "/completions": CompletionDialect(served),
        "/responses": ResponsesDialect(served),
    }
    messages = MessagesDialect(served)
    found = {base + path: dialect for path, dialect in ours.items() for base in _BASES}
    return found | {f"{base}/messages": messages for base in _ANTHROPIC_BASES}


def _inquiries(served: Served) -> dict[str, Answer]:
    """By path. Those of tokens stand at the bare host, where vLLM has them, and at /v1."""
    converter, messages = Converter(served), MessagesDialect(served)
    found: dict[str, Answer] = {}
    for base in ("", "/v1"):
        found[f"{base}/tokenize"] = converter.tokenize
        found[f"{base}/detokenize"] = converter.detokenize
    for base in _ANTHROPIC_BASES:
        found[f"{base}/messages/count_tokens"] = messages.count
    if served.policy.allow_render:
        found[RENDER] = converter.render
    return found


def _probes(probes: Probes, policy: Policy) -> dict[str, Probe]:
    """By path."""
    found: dict[str, Probe] = {
        "/livez": probes.live,
        "/health": probes.live,
        "/readyz": probes.ready,
        "/ping": probes.ping,
        "/version": probes.version,
    }
    return found | ({"/openapi.json": Description(policy).answer} if policy.allow_openapi else {})


class Switch:
    """Sends what generates straight to its endpoint: nothing else stands before its client."""

    def __init__(self, endpoints: Mapping[str, App], pages: Router, signpost: Signpost) -> None:
        self._endpoints = endpoints
        self._signpost = signpost
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if is_post else None
        if endpoint is not None:
            return await endpoint(scope, receive, send)
        scope["app"] = self  # so that the router raises what it finds wrong
        try:
            await self._pages(scope, receive, send)
        except HTTPException as found:
            raise self._signpost.refusal(scope["path"], found) from None


class Front:
    """Names every request, and answers whatever nobody answered."""

    def __init__(
        self,
        app: App,
        version: Callable[[], str],
        refused: Callable[[DiptychError], None] = lambda error: None,
        degraded: Callable[[], str] = lambda: "",
    ) -> None:
        self._app = app
        self._degraded = degraded
        self._version = version
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = scope["request_id"] = f"req_{secrets.token_hex(16)}"
        scope[HEADERS_IN_SCOPE] = {}
        request_id_var.set(request_id)
        common = _common_headers(request_id, self._version(), scope["headers"])
        if is_anthropic(scope["path"]):
            common.append((b"request-id", request_id.encode()))  # the name that its clients know
        if scope["method"] == "POST" and (policy := self._degraded()):
            common.append((POLICY_HEADER, policy.encode()))
        has_started = False

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                more = [(n.encode(), v.encode()) for n, v in scope[HEADERS_IN_SCOPE].items()]
                message["headers"] = [*message.get("headers", ()), *common, *more]
                log.debug("%s %s %d", scope["method"], scope["path"], message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientGone as gone:
            log.info("client gone: %s", gone)
            if (hang_up := scope.get(HANG_UP)) is not None:
                hang_up()  # else what is unsent would wait for a client that does not read
                await asyncio.sleep(0)  # then the server knows
        except DiptychError as error:
            if has_started:
                raise
            level = logging.ERROR if isinstance(error, Broken) else logging.INFO
            log.log(level, "refused code=%s status=%d", error.code, error.http_status)
            self._refused(error)
            await _tell(send_named, scope["path"], error, request_id)
        except Exception as error:
            log.exception("request failed")
            if has_started:
                raise
            broken = Broken(type(error).__name__)
            self._refused(broken)
            await _tell(send_named, scope["path"], broken, request_id)


def _common_headers(request_id: str, version: str, received: Headers) -> list[tuple[bytes, bytes]]:
    common = [
        (b"x-request-id", request_id.encode()),
        (b"x-model-version", version.encode()),
        (b"server", b"llm-gateway"),
        (b"x-content-type-options", b"nosniff"),
    ]
    sent = dict(received)
    theirs = sent.get(b"x-client-request-id") or sent.get(b"x-request-id") or b""
    if _CLIENT_ID.fullmatch(theirs):
        common.append((b"x-client-request-id", theirs))
    return common


async def _tell(send: Send, path: str, error: DiptychError, request_id: str) -> None:
    body = orjson.dumps(envelope_for(path, error, request_id))
    fields = headers(error) | {"content-type": "application/json", "content-length": str(len(body))}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": error.http_status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
