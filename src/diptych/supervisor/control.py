"""Where a running supervisor takes orders: HTTP on loopback, for who knows the cluster secret."""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import orjson
import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diptych.core.errors import BadRequest, DiptychError, Misconfigured
from diptych.core.phases import Role
from diptych.supervisor.scaling import Scaled

Scale = Callable[[Mapping[Role, int]], Awaitable[Scaled]]


class _Wish(BaseModel):
    """The sizes that pools shall have; those not named stay."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prefill: int | None = Field(None, ge=1, le=64)
    decode: int | None = Field(None, ge=1, le=64)
    hybrid: int | None = Field(None, ge=1, le=64)

    def counts(self) -> dict[Role, int]:
        return {Role(name): n for name, n in self.model_dump(exclude_none=True).items()}


class Control:
    """Serves orders as an async context. Without an address it serves nothing."""

    def __init__(self, listen: str, token: str, scale: Scale) -> None:
        self._listen = listen
        self._token = f"Bearer {token}".encode()
        self._scale = scale
        application = Starlette(routes=[Route("/scale", self._answer, methods=["POST"])])
        self._server = _Server(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._listen:
            host, _, port = self._listen.rpartition(":")
            try:
                listener = socket.create_server((host, int(port)))
            except OSError as error:
                what = error.strerror or error
                raise Misconfigured(f"cannot take orders at {self._listen}: {what}") from error
            self._serving = asyncio.create_task(self._server.serve([listener]))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    async def _answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._token):
            return _reply(401, _error("invalid_token", "expected the token of this platform"))
        try:
            scaled = await self._scale(_read(await request.body()))
        except DiptychError as error:
            return _reply(error.http_status, _error(error.code, error.message))
        return _reply(200, asdict(scaled))


class _Server(uvicorn.Server):
    """Signals are the supervisor's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _read(body: bytes) -> dict[Role, int]:
    try:
        return _Wish.model_validate_json(body).counts()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise BadRequest(f"{where}: {first['msg']}", param=where) from None


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _reply(status: int, body: Any) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
