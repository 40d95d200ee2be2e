"""The ASGI application: routes, and a front that gives every answer its headers and envelope."""

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from diptych.core.errors import Broken, DiptychError
from diptych.gateway import playground
from diptych.gateway.chat.dialect import ChatDialect
from diptych.gateway.dialect import Dialect
from diptych.gateway.endpoint import Endpoint
from diptych.gateway.errors import ClientGone, HttpError, envelope, headers
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.probes import Probes
from diptych.gateway.served import Served
from diptych.gateway.stream import Patience, Receive, Send
from diptych.gateway.tenancy.door import HEADERS_IN_SCOPE, Door
from diptych.gateway.traffic import Traffic
from diptych.telemetry.logs import request_id_var

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_BASES = ("/v1", "", "/beta/v1", "/beta")  # DeepSeek's clients know the later ones
_SUPPORTED = "POST /v1/chat/completions, GET /v1/models"
_NOT_OFFERED = (
    "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/audio",
    "/v1/images", "/v1/moderations", "/v1/files", "/v1/batches", "/v1/fine_tuning",
    "/v1/assistants", "/v1/threads", "/rerank", "/score", "/pooling", "/classify",
    "/user/balance", "/tokenize", "/detokenize",
)  # fmt: skip


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
    endpoints = _endpoints(served, traffic, pipeline, patience or Patience())
    pages = Router(redirect_slashes=False)
    for path, endpoint in endpoints.items():
        pages.routes.append(Route(path, endpoint, methods=["POST"]))  # tells other methods so
    probes = Probes(served, traffic, is_connected, lambda: door is not None and door.is_held)
    for path in (f"{base}/models" for base in _BASES):
        pages.add_route(path, probes.models, methods=["GET"])
        pages.add_route(path + "/{name:path}", probes.model, methods=["GET"])
    for path in ("/livez", "/health"):
        pages.add_route(path, probes.live, methods=["GET"])
    pages.add_route("/readyz", probes.ready, methods=["GET"])
    pages.add_route("/version", probes.version, methods=["GET"])
    pages.routes.extend(playground.routes() if has_page else ())
    app: App = Switch(endpoints, pages)
    if door is not None:
        app = partial(door.pass_through, app)
    return Front(app, version=lambda: served.version, refused=pipeline.measures.rejected)


def _endpoints(
    served: Served, traffic: Traffic, pipeline: Pipeline, patience: Patience
) -> dict[str, Endpoint]:
    """By path, each dialect below each base."""
    return {
        base + path: Endpoint(dialect, traffic, pipeline, patience)
        for path, dialect in _dialects(served).items()
        for base in _BASES
    }


def _dialects(served: Served) -> dict[str, Dialect]:
    """By path, below each base."""
    return {"/chat/completions": ChatDialect(served)}


def _refusal(path: str, found: HTTPException) -> HttpError:
    """What the routing found: no such path, or not with this method."""
    if found.status_code == 405:
        allowed = (found.headers or {}).get("Allow", "another method")
        text = f"Use {allowed} here."
        return HttpError(405, "method_not_allowed", text, {"allow": allowed})
    if path.startswith(_NOT_OFFERED):
        return HttpError(404, "endpoint_not_supported", f"Supported are {_SUPPORTED}.")
    return HttpError(404, "unknown_url", f"No such path. Supported are {_SUPPORTED}.")


class Switch:
    """Sends what generates straight to its endpoint: nothing else stands before its client."""

    def __init__(self, endpoints: Mapping[str, App], pages: App) -> None:
        self._endpoints = endpoints
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
            raise _refusal(scope["path"], found) from None


class Front:
    """Names every request, and answers whatever nobody answered."""

    def __init__(
        self,
        app: App,
        version: Callable[[], str],
        refused: Callable[[DiptychError], None] = lambda error: None,
    ) -> None:
        self._app = app
        self._version = version
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = scope["request_id"] = f"req_{secrets.token_hex(16)}"
        scope[HEADERS_IN_SCOPE] = {}
        request_id_var.set(request_id)
        common = _common_headers(request_id, self._version(), scope["headers"])
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
        except DiptychError as error:
            if has_started:
                raise
            level = logging.ERROR if isinstance(error, Broken) else logging.INFO
            log.log(level, "refused code=%s status=%d", error.code, error.http_status)
            self._refused(error)
            await _tell(send_named, error, request_id)
        except Exception as error:
            log.exception("request failed")
            if has_started:
                raise
            broken = Broken(type(error).__name__)
            self._refused(broken)
            await _tell(send_named, broken, request_id)


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


async def _tell(send: Send, error: DiptychError, request_id: str) -> None:
    body = orjson.dumps(envelope(error, request_id))
    fields = headers(error) | {"content-type": "application/json", "content-length": str(len(body))}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": error.http_status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
