"""Gateway side of Session: one long-lived stream a worker, demultiplexed by request.

A stream lives once. When it breaks, falls silent or shows a hung engine, every conversation on it
raises Lost; the next one opens a new stream, after a back-off.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import BlocksStub, WorkerStub
from diptych.core.errors import WORKER_LEFT, Broken, DiptychError, Lost, Overloaded, Refused
from diptych.core.ids import Incarnation, Key, Rank
from diptych.telemetry.traces import traceparent_var
from diptych.transport.channel import Backoff, Dial, connect, deadline
from diptych.transport.errors import from_rpc
from diptych.transport.outbox import Outbox
from diptych.transport.wire import error_from_pb, key_from_pb

log = logging.getLogger(__name__)

OPEN_S = 5.0
SILENCE_S = 5.0
HUNG_ENGINE_S = 10.0
UNUSED_S = 60.0
UNSENT_BYTES = 256 << 20

Said = pb.Accepted | pb.ChunkDone | pb.Reserved | pb.Busy | pb.StepRow


class Conversation:
    """One request on a session: what the gateway says about it, what the worker answers."""

    def __init__(self, session: "Session", key: Key) -> None:
        self._session = session
        self.key = key
        self._is_over = False
        self._heard: asyncio.Queue[Said | DiptychError] = asyncio.Queue()

    def send(self, up: pb.SessionUp) -> None:
        """Queue a message to the worker; Lost if the session is over."""
        up.traceparent = traceparent_var.get()
        self._session.send(up)

    async def receive(self) -> Said:
        """The next message; raises what the worker failed with, or Lost when the session ends."""
        heard = await self._heard.get()
        if isinstance(heard, DiptychError):
            self._heard.put_nowait(heard)  # the end stays the end
            self._is_over = True
            raise heard
        return heard

    def hear(self, said: Said | DiptychError) -> None:
        self._heard.put_nowait(said)

    def cancel(self) -> None:
        """Tell the worker to forget the request, unless it has; stop listening. Twice is once."""
        if not self._is_over and self._session.is_alive:
            up_to = pb.Cancel(request_id=self.key.request_id, up_to_attempt=self.key.attempt)
            self._session.send(pb.SessionUp(cancel=up_to))
        self.finish()

    def finish(self) -> None:
        """The worker holds nothing any more: stop listening, never cancel."""
        self._is_over = True
        self.close()

    def close(self) -> None:
        """Stop listening; the worker keeps what it holds, and `cancel` still reaches it."""
        self._session.unlisten(self)


class Session:
    """One stream to one life of a worker."""

    def __init__(
        self, rank: Rank, gateway_id: str, silence_s: float, unused_s: float, dial: Dial
    ) -> None:
        self.rank = rank
        self._gateway_id = gateway_id
        self._silence_s = silence_s
        self._unused_s = unused_s
        self._channel = dial(rank.address)
        self._outbox: Outbox[pb.SessionUp] = Outbox(UNSENT_BYTES)
        self._conversations: dict[Key, Conversation] = {}
        self._run: asyncio.Task[None] | None = None
        self._unused_at = 0.0
        self.error: DiptychError | None = None
        self.namespace = b""

    @property
    def is_alive(self) -> bool:
        return self._run is not None and self.error is None

    @property
    def blocks(self) -> Any:
        """Stub of the worker's unary ticket calls, on the control connection."""
        return BlocksStub(self._channel)  # type: ignore[no-untyped-call]

    async def open(self, on_end: Callable[["Session"], None]) -> None:
        """Connect and greet; the worker's refusal, Lost, or Expired."""
        stub = WorkerStub(self._channel)  # type: ignore[no-untyped-call]
        call = stub.Session()
        hello = pb.Hello(gateway_id=self._gateway_id, incarnation=self.rank.incarnation)
        try:
            async with deadline(OPEN_S, f"opening a session with {self.rank.worker_id}"):
                await call.write(pb.SessionUp(hello=hello))
                down = await call.read()
            if down is grpc.aio.EOF or down.WhichOneof("body") != "welcome":
                raise Broken(f"{self.rank.worker_id} did not answer Hello with Welcome")
            if down.welcome.worker_id != self.rank.worker_id:
                raise Refused(f"{self.rank.address} is {down.welcome.worker_id} now")
            self.namespace = down.welcome.namespace
            self._unused_at = asyncio.get_running_loop().time() + self._unused_s
            self._run = asyncio.create_task(self._serve(call, on_end))
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        finally:
            if self._run is None:
                call.cancel()
                await self._channel.close()

    def converse(self, key: Key) -> Conversation:
        """Listen for a request's messages."""
        conversation = Conversation(self, key)
        if self.error is not None:
            raise self.error
        self._conversations[key] = conversation
        return conversation

    def send(self, up: pb.SessionUp) -> None:
        if self.error is not None:
            raise self.error
        if self._outbox.overflowed.is_set():
            raise Overloaded(f"{self.rank.worker_id} does not take what it is sent")
        self._outbox.put(up)

    def unlisten(self, conversation: Conversation) -> None:
        if self._conversations.get(conversation.key) is conversation:
            del self._conversations[conversation.key]
            self._unused_at = asyncio.get_running_loop().time() + self._unused_s

    async def close(self) -> None:
        """End the stream; the worker cancels whatever is left of ours."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])

    async def _serve(self, call: Any, on_end: Callable[["Session"], None]) -> None:
        writer = asyncio.create_task(self._write(call))
        error: DiptychError = Lost(f"{self.rank.worker_id}: the session was closed")
        try:
            await self._read(call)
        except DiptychError as failure:
            error = failure
        except grpc.aio.AioRpcError as failure:
            error = from_rpc(failure)
        except asyncio.CancelledError:
            pass  # closed by us; the task ends here anyway
        finally:
            self._fail(error)
            on_end(self)
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await self._channel.close()

    async def _read(self, call: Any) -> None:
        loop = asyncio.get_running_loop()
        while self._conversations or loop.time() < self._unused_at:
            try:
                async with asyncio.timeout(self._silence_s):
                    down = await call.read()
            except TimeoutError as error:
                raise Lost(
                    f"{self.rank.worker_id} was silent for {self._silence_s:g} s", code="silent"
                ) from error
            if down is grpc.aio.EOF:
                raise Lost(f"{self.rank.worker_id} ended the session", code=WORKER_LEFT)
            self._dispatch(down)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                await call.write(await self._outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader meets the same end and tells it

    def _dispatch(self, down: pb.SessionDown) -> None:
        match down.WhichOneof("body"):
            case "step":
                for row in down.step.rows:
                    self._tell(row.key, row)
            case "accepted":
                self._tell(down.accepted.key, down.accepted)
            case "progress":
                self._tell(down.progress.key, down.progress)
            case "reserved":
                self._tell(down.reserved.key, down.reserved)
            case "busy":
                self._tell(down.busy.key, down.busy)
            case "failed":
                self._tell(down.failed.key, error_from_pb(down.failed))
            case "beat" if down.beat.engine_idle_ms > HUNG_ENGINE_S * 1000:
                idle_s = down.beat.engine_idle_ms / 1000
                raise Lost(
                    f"{self.rank.worker_id}: the engine has not answered for {idle_s:.0f} s",
                    code="engine_hung",
                )

    def _tell(self, key: pb.RequestKey, said: Said | DiptychError) -> None:
        conversation = self._conversations.get(key_from_pb(key))
        if conversation is not None:
            conversation.hear(said)

    def _fail(self, error: DiptychError) -> None:
        self.error = error
        level = logging.INFO if not self._conversations else logging.WARNING
        log.log(
            level,
            "session ended worker=%s conversations=%d why=%s",
            self.rank.worker_id,
            len(self._conversations),
            error.message,
        )
        for conversation in self._conversations.values():
            conversation.hear(error)
        self._conversations.clear()


@dataclass(slots=True)
class _Gate:
    """Back-off of one worker's life."""

    backoff: Backoff
    not_before_s: float


class SessionPool:
    """Sessions by worker: opened on demand, closed when unused, replaced when dead."""

    def __init__(
        self,
        gateway_id: str,
        *,
        silence_s: float = SILENCE_S,
        unused_s: float = UNUSED_S,
        dial: Dial = connect,
    ) -> None:
        self._gateway_id = gateway_id
        self._dial = dial
        self._silence_s = silence_s
        self._unused_s = unused_s
        self._open: dict[tuple[str, Incarnation], Session] = {}
        self._opening: dict[tuple[str, Incarnation], asyncio.Task[Session]] = {}
        self._gates: dict[tuple[str, Incarnation], _Gate] = {}

    @property
    def num_sessions(self) -> int:
        return len(self._open)

    async def converse(self, rank: Rank, key: Key) -> Conversation:
        """Listen for a request at a worker, opening the session if there is none."""
        return (await self.session(rank)).converse(key)

    async def session(self, rank: Rank) -> Session:
        """The live session with this life of the worker."""
        name = (rank.address, rank.incarnation)
        session = self._open.get(name)
        if session is not None and session.is_alive:
            return session
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.create_task(self._connect(rank))
            opening.add_done_callback(lambda task: self._opened(name, task))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """End every session; their conversations raise Lost."""
        for opening in list(self._opening.values()):
            opening.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        for session in list(self._open.values()):
            await session.close()

    async def _connect(self, rank: Rank) -> Session:
        name = (rank.address, rank.incarnation)
        loop = asyncio.get_running_loop()
        gate = self._gates.get(name)
        if gate is not None:
            await asyncio.sleep(max(0.0, gate.not_before_s - loop.time()))
        session = Session(rank, self._gateway_id, self._silence_s, self._unused_s, self._dial)
        try:
            await session.open(self._ended)
        except DiptychError:
            self._shut(name, loop.time())
            raise
        self._gates.pop(name, None)
        self._open[name] = session
        return session

    def _shut(self, name: tuple[str, Incarnation], now_s: float) -> None:
        for old in [n for n, g in self._gates.items() if g.not_before_s < now_s - UNUSED_S]:
            del self._gates[old]  # lives of workers that are long over
        gate = self._gates.setdefault(name, _Gate(Backoff(0.05, 1.0), now_s))
        gate.not_before_s = now_s + gate.backoff.failed()

    def _opened(self, name: tuple[str, Incarnation], task: asyncio.Task[Session]) -> None:
        del self._opening[name]
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited has met it

    def _ended(self, session: Session) -> None:
        name = (session.rank.address, session.rank.incarnation)
        if self._open.get(name) is session:
            del self._open[name]
