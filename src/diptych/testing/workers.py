"""Workers in this process, served over real gRPC on loopback; engines are scripted or given."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.step import StepOutput
from diptych.decode_service.puller import Puller, Transfer
from diptych.decode_service.service import DecodeService
from diptych.engine.port import EnginePort
from diptych.prefill_service.service import PrefillService
from diptych.testing.scripted import Script, ScriptedEngine
from diptych.transport.channel import Dial
from diptych.transport.server import Server
from diptych.transport.session_server import Identity
from diptych.transport.tls import Credentials, dial_of

SECRET = b"the cluster secret of all tests"

Service = TypeVar("Service", PrefillService, DecodeService)
OnStep = Callable[[StepOutput], None]
Make = Callable[[OnStep], EnginePort]  # an engine that runs


@dataclass(frozen=True, slots=True)
class Worker(Generic[Service]):
    """One running worker."""

    service: Service
    engine: EnginePort
    server: Server
    rank: Rank
    listeners: list[OnStep]  # hear of every step, after the service

    def is_at_baseline(self) -> bool:
        """Whether nothing of any request is left."""
        counts = self.engine.counts()
        return (
            counts.free_blocks == counts.num_blocks
            and counts.free_slots == counts.num_slots
            and not counts.running + counts.waiting + counts.held + counts.reserved
            and not self.service.sessions.num_requests
        )


class _Relay:
    """Hands steps to a service that does not exist yet when its engine is made."""

    def __init__(self) -> None:
        self.to: list[OnStep] = []

    def __call__(self, output: StepOutput) -> None:
        for listener in self.to:
            listener(output)


@asynccontextmanager
async def prefill_worker(
    name: str = "prefill-1",
    script: Script | None = None,
    *,
    make: Make | None = None,
    secret: bytes = SECRET,
    clock: Callable[[], float] = time.monotonic,
    credentials: Credentials | None = None,
) -> AsyncIterator[Worker[PrefillService]]:
    """A prefill worker; stopped without a grace at the end, as if killed."""
    relay = _Relay()
    engine = (make or _scripted(script))(relay)
    identity = _identity(name, engine)
    service = PrefillService(engine, identity, secret, clock=clock)
    relay.to.append(service.on_step)
    server = Server("127.0.0.1:0", [service.register], grace_s=0, credentials=credentials)
    async with _serving(engine, server):
        service.holdings.address = server.address
        lapses = asyncio.create_task(service.holdings.run())
        try:
            yield Worker(service, engine, server, _rank(identity, server), relay.to)
        finally:
            lapses.cancel()


@asynccontextmanager
async def decode_worker(
    name: str = "decode-1",
    script: Script | None = None,
    *,
    make: Make | None = None,
    secret: bytes = SECRET,
    silence_s: float = 2.0,
    renew_every_s: float = 5.0,
    on_transfer: Callable[[Transfer], None] = lambda transfer: None,
    credentials: Credentials | None = None,
    dial: Dial | None = None,
) -> AsyncIterator[Worker[DecodeService]]:
    """A decode worker; stopped without a grace at the end, as if killed. It `dial`s holders."""
    relay = _Relay()
    engine = (make or _scripted(script))(relay)
    identity = _identity(name, engine)
    puller = Puller(
        engine,
        identity.worker_id,
        secret,
        silence_s=silence_s,
        renew_every_s=renew_every_s,
        on_transfer=on_transfer,
        dial=dial or dial_of(credentials),
    )
    service = DecodeService(engine, identity, puller)
    relay.to.append(service.on_step)
    server = Server("127.0.0.1:0", [service.register], grace_s=0, credentials=credentials)
    try:
        async with _serving(engine, server):
            yield Worker(service, engine, server, _rank(identity, server), relay.to)
    finally:
        await puller.close()


def _scripted(script: Script | None) -> Make:
    def make(on_step: OnStep) -> ScriptedEngine:
        engine = ScriptedEngine(on_step, script)
        engine.start()
        return engine

    return make


@asynccontextmanager
async def _serving(engine: EnginePort, server: Server) -> AsyncIterator[None]:
    async with server:
        try:
            yield
        finally:
            await server.stop()
            await engine.stop()


def _identity(name: str, engine: EnginePort) -> Identity:
    return Identity(WorkerId(name), Incarnation(secrets.randbits(64) | 1), engine.namespace)


def _rank(identity: Identity, server: Server) -> Rank:
    return Rank(identity.worker_id, server.address, identity.incarnation)
