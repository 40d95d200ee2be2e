"""A tiny HTTP server for people and Prometheus: GET of a few pages, beside the real service."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl

from diptych.core.errors import BadRequest, DiptychError, Misconfigured

REQUEST_TIMEOUT_S = 5.0
REQUEST_BYTES = 8 << 10

Query = Mapping[str, str]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What is shown under a path."""

    content_type: str
    make: Callable[[Query], Awaitable[bytes]]


class Endpoint:
    """Serves pages as an async context. Without an address it serves nothing."""

    def __init__(
        self,
        listen: str | None,
        pages: Mapping[str, Page],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._listen = listen
        self._pages = pages
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self.address = ""  # host:port, once it serves

    async def start(self) -> None:
        """Bind and serve; Misconfigured if the address cannot be had."""
        if self._listen is not None:
            host, _, port = self._listen.rpartition(":")
            try:
                self._server = await asyncio.start_server(
                    self._serve, host.strip("[]"), int(port), limit=REQUEST_BYTES
                )
            except OSError as error:
                raise Misconfigured(
                    f"--metrics-listen {self._listen}: {error.strerror or error}"
                ) from error
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
            log.info("metrics at=http://%s/metrics", self.address)

    def close(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):  # they left
            try:
                async with asyncio.timeout(self._timeout_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
            finally:
                writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        page = self._pages.get(path)
        if page is None:
            return _reply("404 Not Found", f"expected one of {', '.join(self._pages)}\n")
        if method != "GET":
            return _reply("405 Method Not Allowed", "expected GET\n")
        try:
            body = await page.make(dict(parse_qsl(query)))
        except BadRequest as error:
            return _reply("400 Bad Request", f"{error.message}\n")
        except DiptychError as error:
            return _reply("500 Internal Server Error", f"{error.message}\n")
        return _reply("200 OK", body, page.content_type)


def _reply(
    status: str, body: str | bytes, content_type: str = "text/plain; charset=utf-8"
) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
