"""Decode's RPC: reservations, hand-offs and tokens over Session; prompts too (hybrid)."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import add_WorkerServicer_to_server
from diptych.core.errors import TICKET_GONE, BadRequest, DiptychError, Lost, Refused
from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.step import StepOutput
from diptych.decode_service.admission import Limits, admit_prompt
from diptych.decode_service.puller import Puller
from diptych.decode_service.wire import accepted_to_pb, busy_to_pb, reserved_to_pb
from diptych.engine.port import EnginePort, Pages
from diptych.telemetry.traces import Tracer
from diptych.transport.channel import deadline
from diptych.transport.session_server import Identity, SessionServer
from diptych.transport.wire import generation_from_pb


@dataclass(eq=False, slots=True)
class _Reservation:
    """Pages that wait for a Start."""

    pages: Pages
    capacity: int
    started: asyncio.Event


@dataclass(eq=False, slots=True)
class _Start:
    """A sequence on its way to its first row here."""

    first: asyncio.Event
    is_accepted: bool = False


class DecodeService:
    """Continues sequences whose KV it fetches, or computes whole requests."""

    def __init__(
        self,
        engine: EnginePort,
        identity: Identity,
        puller: Puller,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._engine = engine
        self._puller = puller
        self._limits = limits
        self._reservations: dict[Key, _Reservation] = {}
        self._starts: dict[Key, _Start] = {}
        self.sessions = SessionServer(identity, self, engine.idle_s, clock=clock, tracer=tracer)

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    @property
    def num_pulls(self) -> int:
        return self._puller.num_pulls

    def register(self, server: grpc.aio.Server) -> None:
        """Add all methods to a server."""
        add_WorkerServicer_to_server(self.sessions, server)  # type: ignore[no-untyped-call]

    def on_step(self, output: StepOutput) -> None:
        """The engine's callback. Acceptance goes out before anything else about a sequence."""
        for chunk in output.chunks:
            self._accept(chunk.key)
        for row in output.rows:
            self._accept(row.key)
            start = self._starts.pop(row.key, None)
            if start is not None:
                start.first.set()
        self.sessions.publish(output)

    async def serve(self, key: Key, up: pb.SessionUp) -> None:
        """Keep a reservation until its Start, or bring a sequence to its first row here."""
        match up.WhichOneof("body"):
            case "reserve":
                await self._reserve(key, up.reserve.capacity, up.reserve.deadline_ms / 1000)
            case "start":
                generation = generation_from_pb(up.start.generation)
                await self._start(generation, up.start.ticket, up.start.deadline_ms / 1000)
            case _:
                raise Refused("this is a decode worker: it takes Reserve and Start")

    async def release(self, key: Key) -> None:
        """Forget a sequence and free its pages."""
        self._reservations.pop(key, None)
        self._starts.pop(key, None)
        await self._engine.drop(key)

    async def _reserve(self, key: Key, capacity: int, deadline_s: float) -> None:
        pages = await self._engine.reserve(key, capacity)
        if pages is None:
            self.sessions.post(key, busy_to_pb(key, self._limits.busy_retry_s))
            self.sessions.forget(key)
            return
        reservation = _Reservation(pages, capacity, asyncio.Event())
        self._reservations[key] = reservation
        self.sessions.post(key, reserved_to_pb(key))
        async with deadline(deadline_s, "waiting for a Start", code="reservation_expired"):
            await reservation.started.wait()

    async def _start(self, generation: Generation, ticket: bytes, deadline_s: float) -> None:
        key = generation.key
        start = self._starts[key] = _Start(asyncio.Event())
        reservation = self._reservations.pop(key, None)
        if reservation is not None:
            reservation.started.set()
        async with deadline(deadline_s, "the next token", code="decode_timeout"):
            if ticket:
                await self._take_over(generation, ticket, reservation)
            else:
                await self._compute(generation, reservation)
            self._accept(key)
            await start.first.wait()

    async def _take_over(
        self, generation: Generation, ticket: bytes, reservation: _Reservation | None
    ) -> None:
        if reservation is None:
            raise Lost(f"{generation.key} has no reservation here", code="reservation_gone")
        if generation.capacity > reservation.capacity:
            raise BadRequest(
                f"{generation.capacity} positions do not fit into the {reservation.capacity} "
                "reserved",
                param="max_new",
            )
        await self._engine.prepare(generation)
        await self._puller.fetch(ticket, generation, reservation.pages)
        try:
            await self._engine.adopt(generation)
        except DiptychError as error:
            raise Lost(f"not adopted: {error.message}", code=TICKET_GONE) from error

    async def _compute(self, generation: Generation, reservation: _Reservation | None) -> None:
        if reservation is not None:
            await self._engine.drop(generation.key)
        admit_prompt(self._engine.counts().waiting, self._limits)
        await self._engine.submit(generation, hold=False)

    def _accept(self, key: Key) -> None:
        start = self._starts.get(key)
        if start is not None and not start.is_accepted:
            start.is_accepted = True
            self.sessions.post(key, accepted_to_pb(key))
