"""HTTP/1.1 of the public port: uvicorn's, with bounds on a request's head, and our envelope."""

import asyncio
import secrets
from http import HTTPStatus
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from diptych.gateway.errors import HttpError, envelope

MAX_URL_BYTES = 8 << 10
MAX_HEAD_BYTES = 32 << 10
HEAD_S = 30.0  # for a whole head, from its first byte; and for the first byte of a connection
HANG_UP = "diptych.hang_up"  # in a scope: breaks the connection, whatever is unsent


class Protocol(HttpToolsProtocol):
    """One connection. What is refused here was never seen by any application."""

    _head_bytes = 0
    _is_in_head = True
    _problem: HttpError | None = None
    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_alarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data) if self._is_in_head else 0
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES and not self._is_closing:
            self._refuse(_large_head())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._alarm is None:
            self._set_alarm()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        self._clear_alarm()
        if len(self.url) > MAX_URL_BYTES:
            self._problem = HttpError(414, "request_header_too_large", "The URL is too long.")
            raise httptools.HttpParserError
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._problem = _large_head()
            raise httptools.HttpParserError
        self.scope[HANG_UP] = self.transport.abort  # type: ignore[literal-required]  # ours
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it when it cannot go on with the connection."""
        self._refuse(self._problem or HttpError(400, "invalid_http", "This is not HTTP/1.1."))

    @property
    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    def _refuse(self, error: HttpError) -> None:
        request_id = f"req_{secrets.token_hex(16)}"
        body = orjson.dumps(envelope(error, request_id))
        fields: dict[str, Any] = {
            "content-type": "application/json",
            "content-length": len(body),
            "x-request-id": request_id,
            "connection": "close",
        }
        status = HTTPStatus(error.http_status)
        head = [f"HTTP/1.1 {status.value} {status.phrase}"]
        head += [f"{name}: {value}" for name, value in fields.items()]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(HEAD_S, self._give_up)

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _give_up(self) -> None:
        self._alarm = None
        if self._head_bytes:
            text = f"The head of the request did not arrive within {HEAD_S:g} s."
            self._refuse(HttpError(408, "request_timeout", text))
        else:
            self.transport.close()


def _large_head() -> HttpError:
    text = f"The headers are larger than {MAX_HEAD_BYTES} bytes."
    return HttpError(431, "request_header_too_large", text)
