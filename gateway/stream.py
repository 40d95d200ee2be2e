"""Answers to a client that may read slowly, or have left: server-sent events, or one body.

Headers wait for the first output or 10 s, so an early failure keeps its status. Events leave as
they come; a comment every 10 s of silence keeps proxies awake.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from diptych.core.errors import Broken, DiptychError
from diptych.gateway.dialect import Shapes
from diptych.gateway.errors import ClientGone
from diptych.gateway.policy import KeepAliveStyle

log = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """With a client; seconds and bytes."""

    headers_s: float = 10.0
    silence_s: float = 10.0
    no_op_s: float = 60.0  # then a comment is not enough
    style: KeepAliveStyle = "comment+chunk"  # what fills silence
    blank_s: float | None = None  # between blank lines before a body; None: status and body at once
    unread_s: float = 60.0
    unread_bytes: int = 8 << 20


class Outbox:
    """Events on their way to one client."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._size_bytes = 0
        self._bell = asyncio.Event()
        self._is_closed = False

    def put(self, data: bytes) -> None:
        """Add events; ClientGone if the client left too much unread."""
        if not data:
            return
        self._events.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > self._max_bytes:
            raise ClientGone(f"{self._size_bytes} bytes unread")
        self._bell.set()

    def close(self) -> None:
        """No more will come."""
        self._is_closed = True
        self._bell.set()

    async def take(self, wait_s: float) -> bytes | None:
        """All events there are; b"" after `wait_s` without any, None after the last."""
        if not self._events and not self._is_closed:
            self._bell.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._bell.wait()
            except TimeoutError:
                return b""
        if not self._events:
            return None
        data = b"".join(self._events)
        self._events.clear()
        self._size_bytes = 0
        return data


async def stream(
    work: Callable[[Outbox], Awaitable[None]],
    send: Send,
    request_id: str,
    headers: Mapping[str, str],
    shapes: Shapes,
    patience: Patience,
) -> None:
    """Run `work`, sending what it puts. An error before the headers is raised; later it is told."""
    outbox = Outbox(patience.unread_bytes)
    producer = asyncio.create_task(_produce(work, outbox))
    try:
        first = await outbox.take(patience.headers_s)
        if first is None:
            await producer  # raises what happened
        await _start(send, _HEADERS | dict(headers))
        await _forward(outbox, first or _filler(shapes, patience), send, shapes, patience)
        try:
            await producer
        except DiptychError as error:
            await _send(send, shapes.failing(error, request_id), patience)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        await end(producer)


async def _produce(work: Callable[[Outbox], Awaitable[None]], outbox: Outbox) -> None:
    try:
        await work(outbox)
    except (DiptychError, ClientGone):
        raise
    except Exception as error:
        log.exception("stream failed")
        raise Broken(f"{type(error).__name__} in a stream") from error
    finally:
        outbox.close()


async def send_whole(
    work: Callable[[], Awaitable[bytes]],
    send: Send,
    headers: Callable[[], Mapping[str, str]],
    failure: Callable[[DiptychError], bytes],
    patience: Patience,
) -> None:
    """Answer 200 with the JSON that `work` makes. After blank lines an error is a body, too."""
    worker = asyncio.ensure_future(work())
    json, has_begun = {"content-type": "application/json"}, False
    try:
        while not (await asyncio.wait([worker], timeout=patience.blank_s))[0]:
            if not has_begun:
                has_begun = True
                await _start(send, json | dict(headers()))
            await _send(send, b"\n", patience)
        if not has_begun:
            body = worker.result()
            length = {"content-length": str(len(body))}
            await _start(send, json | length | dict(headers()))
        else:
            try:
                body = worker.result()
            except DiptychError as error:
                body = failure(error)
        await send({"type": "http.response.body", "body": body})
    finally:
        await end(worker)


async def _forward(
    outbox: Outbox, first: bytes, send: Send, shapes: Shapes, patience: Patience
) -> None:
    data: bytes | None = first
    silent_s = 0.0
    while data is not None:
        if not data:
            silent_s += patience.silence_s
            data = _filler(shapes, patience)
            if silent_s >= patience.no_op_s and patience.style == "comment+chunk":
                silent_s = 0.0
                data += shapes.no_op()
        elif data is not first:
            silent_s = 0.0
        if data:
            await _send(send, data, patience)
        data = await outbox.take(patience.silence_s)


def _filler(shapes: Shapes, patience: Patience) -> bytes:
    """What a silent stream says."""
    match patience.style:
        case "off":
            return b""
        case "chunk":  # for clients that fail on comments
            return shapes.no_op()
    return shapes.keep_alive


async def _start(send: Send, headers: Mapping[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _send(send: Send, data: bytes, patience: Patience) -> None:
    try:
        async with asyncio.timeout(patience.unread_s):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except TimeoutError:
        raise ClientGone(f"nothing read for {patience.unread_s:g} s") from None


async def unless_gone(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work; ClientGone, and the work cancelled, as soon as the client leaves."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait([worker, watcher], return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGone("disconnected")
        await worker
    finally:
        await end(worker, watcher)


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait for them; what they failed with is known or no longer wanted."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
