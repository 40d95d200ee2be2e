"""Prefill's RPCs: prompts over Session, their KV over Blocks."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import (
    BlocksServicer,
    add_BlocksServicer_to_server,
    add_WorkerServicer_to_server,
)
from diptych.core.errors import Broken, Refused
from diptych.core.ids import Key
from diptych.core.step import Row, StepOutput
from diptych.engine.port import EnginePort
from diptych.prefill_service.admission import Limits, admit
from diptych.prefill_service.holdings import Holdings
from diptych.prefill_service.tickets import LEASE_S
from diptych.prefill_service.wire import accepted_to_pb, reply_to_pb
from diptych.telemetry.traces import Tracer
from diptych.transport.blocks import BlockServer
from diptych.transport.channel import deadline
from diptych.transport.session_server import Identity, SessionServer
from diptych.transport.wire import generation_from_pb

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Prompt:
    """A prompt on its way to the first token."""

    ticket: bytes
    first: asyncio.Future[Row]
    is_accepted: bool = False


class PrefillService(BlocksServicer):
    """Computes prompts for gateways and keeps their KV for decode workers."""

    def __init__(
        self,
        engine: EnginePort,
        identity: Identity,
        secret: bytes,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._prompts: dict[Key, _Prompt] = {}
        self.sessions = SessionServer(identity, self, engine.idle_s, clock=clock, tracer=tracer)
        self.holdings = Holdings(engine, identity, secret, self.sessions.end, clock)
        self._blocks = BlockServer(self.holdings.open)

    def register(self, server: grpc.aio.Server) -> None:
        """Add all methods to a server."""
        add_WorkerServicer_to_server(self.sessions, server)  # type: ignore[no-untyped-call]
        add_BlocksServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        self._blocks.register(server)

    def on_step(self, output: StepOutput) -> None:
        """The engine's callback. Acceptance goes out before anything else about a prompt."""
        for chunk in output.chunks:
            self._accept(chunk.key)
        for row in output.rows:
            self._accept(row.key)
        self.sessions.publish(output)
        for row in output.rows:
            prompt = self._prompts.pop(row.key, None)
            if row.finish is not None:
                self.holdings.forget(row.key)
            if prompt is not None and not prompt.first.done():
                prompt.first.set_result(row)

    async def serve(self, key: Key, up: pb.SessionUp) -> None:
        """Run one prompt up to its first token, then hold what it left."""
        if up.WhichOneof("body") != "prefill":
            raise Refused("this is a prefill worker: it only takes Prefill")
        generation = generation_from_pb(up.prefill.generation)
        admit(len(self._prompts), self._limits)
        deadline_s = up.prefill.deadline_ms / 1000
        prompt = _Prompt(
            self.holdings.expect(generation, deadline_s + LEASE_S),
            asyncio.get_running_loop().create_future(),
        )
        self._prompts[key] = prompt
        async with deadline(deadline_s, "prefill", code="prefill_timeout"):
            await self._engine.submit(generation, hold=True)
            self._accept(key)
            row = await prompt.first
        if row.finish is None:
            pages = await self._engine.held(key)
            if pages is None:
                raise Broken(f"the engine does not hold {key} after its first token")
            self.holdings.hold(key, pages)

    async def release(self, key: Key) -> None:
        """Forget a prompt: its right to be read first, its pages after."""
        self._prompts.pop(key, None)
        self.holdings.forget(key)
        await self._engine.drop(key)

    def _accept(self, key: Key) -> None:
        prompt = self._prompts.get(key)
        if prompt is not None and not prompt.is_accepted:
            prompt.is_accepted = True
            self.sessions.post(key, accepted_to_pb(key, prompt.ticket))

    async def Renew(self, request: pb.TicketRequest, context: Any) -> pb.TicketReply:
        """Prolong a ticket's lease."""
        return reply_to_pb(self.holdings.renew(request.ticket))

    async def Commit(self, request: pb.TicketRequest, context: Any) -> pb.TicketReply:
        """VALID gives the fetched KV to the asker and frees it here; LAPSED forbids its use."""
        return reply_to_pb(0.0 if self.holdings.commit(request.ticket) else None)

    async def Abort(self, request: pb.TicketRequest, context: Any) -> pb.TicketReply:
        """Free a ticket's KV unfetched."""
        log.info("ticket aborted by=%s why=%s", request.worker_id, request.why)
        return reply_to_pb(0.0 if self.holdings.abort(request.ticket) else None)
