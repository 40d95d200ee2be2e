"""The admin application: its routes, and errors in the same envelope as everywhere."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from diptych import __version__
from diptych.core.errors import BadRequest, DiptychError
from diptych.gateway.admin import accounts, console, keyring, platform, watch, workers
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Levels, Site
from diptych.gateway.admin.watch import Watch
from diptych.gateway.app import App, Front
from diptych.gateway.body import check_size, too_large
from diptych.gateway.errors import HttpError, envelope, headers

MAX_ADMIN_BODY_BYTES = 1 << 20
_REFUSED = "diptych.refused"

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in (
        (400, "what was sent is wrong; `param` names it"),
        (401, "no valid key"),
        (403, "the key lacks the scope"),
        (404, "there is no such thing"),
        (409, "the Idempotency-Key stands for another call"),
        (413, "the body is too large"),
        (415, "the body is not JSON"),
        (429, "too many wrong keys from this address"),
        (501, "not in this deployment"),
        (503, "a store or the router does not answer"),
    )
}


def build(site: Site, entrance: Entrance, levels: Levels, watching: Watch | None = None) -> App:
    """The application, ready for a server; whoever stops that ends `watching` first."""
    app = FastAPI(
        title="Diptych admin API",
        version=__version__,
        description="Keys, usage, audit, fleet, drain and log levels of one gateway.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_ERRORS,
    )
    app.include_router(keyring.routes(site, entrance), prefix="/admin/v1")
    app.include_router(accounts.routes(site, entrance), prefix="/admin/v1")
    app.include_router(platform.routes(site, entrance, levels), prefix="/admin/v1")
    app.include_router(workers.routes(site, entrance), prefix="/admin/v1")
    app.include_router(watch.routes(watching or Watch(site), entrance), prefix="/admin/v1")
    app.router.routes.extend(console.routes())
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _explain)
    app.add_middleware(_Bounded)
    app.add_middleware(Front, version=site.version)
    _describe(app)
    return app


class _Bounded:
    """No body of an operator is large."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        check_size(declared, MAX_ADMIN_BODY_BYTES)
        size_bytes = 0

        async def bounded() -> Any:
            nonlocal size_bytes
            message = await receive()
            size_bytes += len(message.get("body", b""))
            if size_bytes > MAX_ADMIN_BODY_BYTES:
                scope[_REFUSED] = too_large(
                    MAX_ADMIN_BODY_BYTES
                )  # the framework hides what we raise
                raise scope[_REFUSED]
            return message

        return await self._app(scope, bounded, send)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return _tell(request, HttpError(405, "method_not_allowed", f"Use {allowed} here."))
    if error.status_code == 404:
        return _tell(request, HttpError(404, "unknown_url", "No such path; see /openapi.json."))
    invalid = BadRequest("The body is not valid JSON.", code="invalid_json")
    return _tell(request, request.scope.get(_REFUSED, invalid))


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _tell(request, BadRequest("The body is not valid JSON.", code="invalid_json"))
    where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return _tell(request, BadRequest(f"{where}: {first['msg']}", code=code, param=where))


def _tell(request: Request, error: DiptychError) -> Response:
    body = orjson.dumps(envelope(error, request.scope["request_id"]))
    return Response(body, error.http_status, headers(error), "application/json")


def _describe(app: FastAPI) -> None:
    """Our errors in the document instead of the framework's 422, and how to send a key."""
    make: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        components = document.setdefault("components", {})
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            components.get("schemas", {}).pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's own way to extend it
