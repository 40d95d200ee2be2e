"""Worker side of Session: who owns which request, one frame a step, beats, cuts, tombstones.

Knows nothing of engines and pages: a Handler serves the messages about one request and releases
what the request holds.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import WorkerServicer
from diptych.core.errors import (
    CANCELLED,
    BadRequest,
    Broken,
    DiptychError,
    Lost,
    Overloaded,
    Refused,
)
from diptych.core.ids import Incarnation, Key, WorkerId
from diptych.core.phases import Finish
from diptych.core.step import Row, StepOutput
from diptych.telemetry.logs import request_id_var
from diptych.telemetry.traces import Attributes, Tracer, traced, traceparent_var
from diptych.transport.channel import deadline
from diptych.transport.outbox import Outbox
from diptych.transport.wire import chunk_to_pb, error_to_pb, key_from_pb, row_to_pb

log = logging.getLogger(__name__)

HELLO_S = 5.0
BEAT_S = 1.0
TOMBSTONE_S = 30.0  # the time of a lease
UNREAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is in this life."""

    worker_id: WorkerId
    incarnation: Incarnation
    namespace: bytes


class Handler(Protocol):
    """What a role does with its requests."""

    async def serve(self, key: Key, up: pb.SessionUp) -> None:
        """Act on Prefill, Reserve or Start; a DiptychError ends the request with Failed."""
        ...

    async def release(self, key: Key) -> None:
        """Free all that a request holds; no serve of its runs any more. Twice is once."""
        ...


@dataclass(eq=False, slots=True)
class _Session:
    gateway_id: str
    outbox: Outbox[pb.SessionDown]
    keys: set[Key] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Request:
    session: _Session
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class SessionServer(WorkerServicer):
    """All sessions of one worker."""

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        idle_s: Callable[[], float],
        *,
        unread_bytes: int = UNREAD_BYTES,
        beat_s: float = BEAT_S,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._identity = identity
        self._tracer = tracer
        self._handler = handler
        self._idle_s = idle_s
        self._unread_bytes = unread_bytes
        self._beat_s = beat_s
        self._clock = clock
        self._sessions: set[_Session] = set()
        self._requests: dict[Key, _Request] = {}
        self._tombstones: dict[str, tuple[int, float]] = {}  # request id: attempt, until when
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._closed = asyncio.Event()
        self._handing_back: asyncio.TimerHandle | None = None
        self._is_aside = False
        self._is_stopping = False

    @property
    def is_draining(self) -> bool:
        """Whether this worker should be given nothing new."""
        return self._is_stopping or self._is_aside

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def post(self, key: Key, down: pb.SessionDown) -> None:
        """Say something about a request to the gateway it belongs to, if there still is one."""
        request = self._requests.get(key)
        if request is not None:
            request.session.outbox.put(down)

    def publish(self, output: StepOutput) -> None:
        """Send a step: its chunks, then one frame a gateway with all its rows."""
        for chunk in output.chunks:
            self.post(chunk.key, pb.SessionDown(progress=chunk_to_pb(chunk)))
        frames: dict[_Session, pb.StepFrame] = {}
        for row in output.rows:
            request = self._requests.get(row.key)
            if request is None:
                continue
            if row.finish is Finish.ERROR:
                request.session.outbox.put(_failed(row.key, _error_of(row)))
            else:
                frame = frames.setdefault(request.session, pb.StepFrame(step=output.step))
                frame.rows.append(row_to_pb(row))
        for session, frame in frames.items():
            session.outbox.put(pb.SessionDown(step=frame))
        for row in output.rows:
            if row.finish is not None:
                self.forget(row.key)

    def forget(self, key: Key) -> None:
        """A request has ended by itself and holds nothing any more."""
        request = self._requests.pop(key, None)
        if request is not None:
            request.session.keys.discard(key)
            if not self._requests:
                self._empty.set()

    def end(self, key: Key) -> None:
        """Release a request that is over without a word to its gateway."""
        self._spawn(self._end(key))

    def stand_aside(self, is_aside: bool, limit_s: float = 0.0) -> None:
        """Ask for nothing new, or for work again; after the limit hand back what is still here.

        A limit of 0 is none. Gateways place what is handed back elsewhere.
        """
        self._is_aside = is_aside
        if self._handing_back is not None:
            self._handing_back.cancel()
            self._handing_back = None
        if is_aside and limit_s:
            loop = asyncio.get_running_loop()
            self._handing_back = loop.call_later(limit_s, self._hand_back)

    async def drain(self, grace_s: float) -> None:
        """Take no new requests, let those here end within the grace, then end the sessions."""
        self._is_stopping = True
        self.stand_aside(False)
        if self._requests:
            self._empty.clear()
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                log.warning("drain ended early requests=%d", len(self._requests))
        self._closed.set()

    async def Session(self, requests: AsyncIterator[pb.SessionUp], context: Any) -> None:
        """One gateway, until either side ends it; then every request of its is cancelled."""
        session = await self._greet(requests)
        self._sessions.add(session)
        log.info("session opened gateway=%s", session.gateway_id)
        ends = [
            asyncio.ensure_future(end)
            for end in (
                self._read(session, requests),
                self._write(session, context),
                session.outbox.overflowed.wait(),
                self._closed.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            for end in ends:
                end.cancel()
            self._sessions.discard(session)
            log.info("session ended gateway=%s requests=%d", session.gateway_id, len(session.keys))
            for key in list(session.keys):
                self._spawn(self._end(key))
            await asyncio.gather(*ends, return_exceptions=True)
        if session.outbox.overflowed.is_set():
            log.warning("session cut gateway=%s unread=%d", session.gateway_id, self._unread_bytes)
            raise Lost(f"cut off: {self._unread_bytes} bytes were left unread", code="slow_reader")

    async def _greet(self, requests: AsyncIterator[pb.SessionUp]) -> _Session:
        async with deadline(HELLO_S, "the session's Hello"):
            up = await anext(requests, None)
        if up is None or up.WhichOneof("body") != "hello":
            raise BadRequest("a session starts with Hello")
        mine = self._identity
        if up.hello.incarnation not in (0, mine.incarnation):
            raise Refused(
                f"{mine.worker_id} has restarted: this is another incarnation",
                code="wrong_incarnation",
            )
        session = _Session(up.hello.gateway_id, Outbox(self._unread_bytes))
        session.outbox.put(
            pb.SessionDown(
                welcome=pb.Welcome(
                    worker_id=mine.worker_id,
                    incarnation=mine.incarnation,
                    namespace=mine.namespace,
                )
            )
        )
        return session

    async def _read(self, session: _Session, requests: AsyncIterator[pb.SessionUp]) -> None:
        async for up in requests:
            match up.WhichOneof("body"):
                case "prefill":
                    self._receive(session, key_from_pb(up.prefill.generation.key), up)
                case "reserve":
                    self._receive(session, key_from_pb(up.reserve.key), up)
                case "start":
                    self._receive(session, key_from_pb(up.start.generation.key), up)
                case "cancel":
                    self._cancel(up.cancel.request_id, up.cancel.up_to_attempt)
                case other:
                    raise BadRequest(f"a session cannot take {other}")

    async def _write(self, session: _Session, context: Any) -> None:
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + self._beat_s
        while True:
            try:
                async with asyncio.timeout_at(beat_at):
                    down = await session.outbox.get()
            except TimeoutError:
                beat_at = loop.time() + self._beat_s
                down = pb.SessionDown(beat=pb.Beat(engine_idle_ms=round(self._idle_s() * 1000)))
            await context.write(down)

    def _receive(self, session: _Session, key: Key, up: pb.SessionUp) -> None:
        request = self._requests.get(key)
        refusal = self._refusal(session, key, request, up)
        if refusal is not None:
            session.outbox.put(_failed(key, refusal))
            return
        if request is None:
            for older in self._attempts(key.request_id, key.attempt - 1):
                self._spawn(self._end(older))
            request = self._requests[key] = _Request(session)
            session.keys.add(key)
        task = self._spawn(self._serve(key, up))
        request.tasks.add(task)
        task.add_done_callback(request.tasks.discard)

    def _refusal(
        self, session: _Session, key: Key, request: _Request | None, up: pb.SessionUp
    ) -> DiptychError | None:
        attempt, until_s = self._tombstones.get(key.request_id, (0, 0.0))
        if key.attempt <= attempt and self._clock() < until_s:
            return Refused(f"{key} was cancelled before it arrived", code=CANCELLED)
        if request is None:
            if self._is_stopping:  # who only stands aside serves what was placed a moment before
                return Overloaded(f"{self._identity.worker_id} is draining", code="draining")
            if self._newer(key):
                return Refused(f"{key} is outdated by a later attempt", code=CANCELLED)
            return None
        if request.session is not session or up.WhichOneof("body") != "start":
            return BadRequest(f"{key} is here already", code="duplicate_request")
        return None

    def _cancel(self, request_id: str, up_to_attempt: int) -> None:
        now_s = self._clock()
        for old in [r for r, (_, until_s) in self._tombstones.items() if until_s <= now_s]:
            del self._tombstones[old]
        attempt, _ = self._tombstones.pop(request_id, (0, 0.0))
        self._tombstones[request_id] = (max(attempt, up_to_attempt), now_s + TOMBSTONE_S)
        for key in self._attempts(request_id, up_to_attempt):
            self._spawn(self._end(key))

    def _attempts(self, request_id: str, up_to: int) -> list[Key]:
        return [k for k in self._requests if k.request_id == request_id and k.attempt <= up_to]

    def _newer(self, key: Key) -> list[Key]:
        return [
            k for k in self._requests if k.request_id == key.request_id and k.attempt > key.attempt
        ]

    async def _end(self, key: Key) -> None:
        """Stop serving a request, then release it: in this order, so that nothing writes late."""
        request = self._requests.get(key)
        if request is None:
            return
        tasks = list(request.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._release(key)

    async def _serve(self, key: Key, up: pb.SessionUp) -> None:
        request_id_var.set(key.request_id)
        traceparent_var.set(up.traceparent)
        attributes: Attributes = {
            "diptych.request_id": key.request_id,
            "diptych.attempt": key.attempt,
        }
        try:
            with traced(self._tracer, f"worker.{up.WhichOneof('body')}", attributes):
                await self._handler.serve(key, up)
        except DiptychError as error:
            await self._fail(key, error)
        except Exception as error:
            log.exception("request failed request=%s", key)
            await self._fail(key, Broken(f"{type(error).__name__} while serving the request"))

    def _hand_back(self) -> None:
        log.warning("drain took too long, handing back requests=%d", len(self._requests))
        why = Overloaded(f"{self._identity.worker_id} is draining", code="draining")
        for key in list(self._requests):
            self.post(key, _failed(key, why))
            self._spawn(self._end(key))

    async def _fail(self, key: Key, error: DiptychError) -> None:
        log.info("request refused request=%s code=%s", key, error.code)
        self.post(key, _failed(key, error))
        await self._release(key)

    async def _release(self, key: Key) -> None:
        try:
            await self._handler.release(key)
        except DiptychError as error:  # an engine that does not answer keeps its pages
            log.error("not released request=%s why=%s", key, error.message)
        self.forget(key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _error_of(row: Row) -> DiptychError:
    if row.is_contradiction:
        return BadRequest(row.message, code="conflicting_parameters")
    return Broken(row.message)


def _failed(key: Key, error: DiptychError) -> pb.SessionDown:
    return pb.SessionDown(failed=error_to_pb(key, error))
