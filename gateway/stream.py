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
from diptych.gateway.alarm import Alarm
from diptych.gateway.dialect import Shapes
from diptych.gateway.errors import ClientGone
from diptych.gateway.notes import Notes
from diptych.gateway.policy import KeepAliveStyle

UNREAD = "unread"  # why a stream was cut: the client did not read

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
        self._alarm = Alarm(self._bell.set)
        self._is_closed = False

    def put(self, data: bytes) -> None:
        """Add events, of any size where all before has been taken; ClientGone if too much waits."""
        if not data:
            return
        is_waiting = bool(self._events)
        self._events.append(data)
        self._size_bytes += len(data)
        if is_waiting and self._size_bytes > self._max_bytes:
            raise ClientGone(f"{self._size_bytes} bytes unread")
        self._bell.set()

    def close(self) -> None:
        """No more will come."""
        self._is_closed = True
        self._alarm.close()
        self._bell.set()

    async def take(self, wait_s: float) -> bytes | None:
        """All events there are; b"" after `wait_s` without any, None after the last."""
        if not self._events and not self._is_closed:
            self._bell.clear()
            self._alarm.set(wait_s)
            await self._bell.wait()
            self._alarm.clear()
        if not self._events:
            return None if self._is_closed else b""
        data = b"".join(self._events)
        self._events.clear()
        self._size_bytes = 0
        return data


class _Client:
    """Who reads the stream. Belongs to the task that made it."""

    def __init__(self, send: Send, unread_s: float) -> None:
        self._send = send
        self._unread_s = unread_s
        self._task = asyncio.current_task()
        self._alarm = Alarm(self.give_up)
        self._is_sending = False
        self._is_stalled = False

    async def start(self, headers: Mapping[str, str]) -> None:
        """The status line and the headers."""
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def give(self, data: bytes, *, is_last: bool = False) -> None:
        """Send; ClientGone if nothing is read for too long, or `give_up` was called."""
        self._alarm.set(self._unread_s)
        self._is_sending = True
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        except asyncio.CancelledError:
            if self._is_stalled and self._task is not None and self._task.uncancel() == 0:
                raise ClientGone("it does not read") from None
            raise
        finally:
            self._is_sending = False
            self._alarm.clear()

    def close(self) -> None:
        self._alarm.close()

    def give_up(self) -> None:
        """Wait no longer for it to read what is being sent."""
        if self._is_sending and not self._is_stalled:
            assert self._task is not None
            self._is_stalled = True
            self._task.cancel()


async def stream(
    work: Callable[[Outbox], Awaitable[None]],
    send: Send,
    request_id: str,
    headers: Mapping[str, str],
    shapes: Shapes,
    patience: Patience,
    notes: Notes,
) -> None:
    """Run `work`, sending what it puts. An error before the headers is raised; later it is told."""
    outbox, client = Outbox(patience.unread_bytes), _Client(send, patience.unread_s)
    producer = asyncio.create_task(_produce(work, outbox))
    producer.add_done_callback(lambda done: client.give_up() if _has_overflown(done) else None)
    try:
        first = await outbox.take(patience.headers_s)
        if first is None:
            await producer  # raises what happened
        await client.start(_HEADERS | dict(headers))
        filler = b"" if first else _filler(shapes, patience)
        notes.keepalives += bool(filler)
        first = first or filler
        await _forward(outbox, first, client, shapes, patience, notes)
        try:
            await producer
        except DiptychError as error:
            notes.cut = error.code
            await client.give(shapes.failing(error, request_id))
        await client.give(b"", is_last=True)
    except ClientGone:
        notes.cut = UNREAD
        raise
    finally:
        client.close()
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


def _has_overflown(producer: "asyncio.Task[None]") -> bool:
    return not producer.cancelled() and isinstance(producer.exception(), ClientGone)


async def send_whole(
    work: Callable[[], Awaitable[bytes]],
    send: Send,
    headers: Callable[[], Mapping[str, str]],
    failure: Callable[[DiptychError], bytes],
    patience: Patience,
) -> None:
    """Answer 200 with the JSON that `work` makes. After blank lines an error is a body, too."""
    worker, client = asyncio.ensure_future(work()), _Client(send, patience.unread_s)
    json, has_begun = {"content-type": "application/json"}, False
    try:
        while not (await asyncio.wait([worker], timeout=patience.blank_s))[0]:
            if not has_begun:
                has_begun = True
                await client.start(json | dict(headers()))
            await client.give(b"\n")
        if not has_begun:
            body = worker.result()
            length = {"content-length": str(len(body))}
            await client.start(json | length | dict(headers()))
        else:
            try:
                body = worker.result()
            except DiptychError as error:
                body = failure(error)
        await client.give(body, is_last=True)
    finally:
        client.close()
        await end(worker)


async def _forward(
    outbox: Outbox,
    first: bytes,
    client: _Client,
    shapes: Shapes,
    patience: Patience,
    notes: Notes,
) -> None:
    data: bytes | None = first
    silent_s = 0.0
    while data is not None:
        if not data:
            silent_s += patience.silence_s
            data = _filler(shapes, patience)
            notes.keepalives += bool(data)
            if silent_s >= patience.no_op_s and patience.style == "comment+chunk":
                silent_s = 0.0
                data += shapes.no_op()
        elif data is not first:
            silent_s = 0.0
        if data:
            await client.give(data)
        data = await outbox.take(patience.silence_s)


def _filler(shapes: Shapes, patience: Patience) -> bytes:
    """What a silent stream says."""
    match patience.style:
        case "off":
            return b""
        case "chunk":  # for clients that fail on comments
            return shapes.no_op()
    return shapes.keep_alive


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
