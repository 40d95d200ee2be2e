"""A real router on loopback, and members: those that only pretend, and scripted workers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.engine.port import EnginePort
from diptych.router.canary import Canaries
from diptych.router.client import Drain, Join, Load, Reporters
from diptych.router.dispatcher import Dispatcher
from diptych.router.ledger import Standing
from diptych.router.pairs import Pairs
from diptych.router.peers import Peers
from diptych.router.registry import Record, StreamRegistry
from diptych.router.service import RouterService
from diptych.router.sharing import Sharing
from diptych.telemetry.metrics import Metrics
from diptych.transport.server import Server
from diptych.transport.session import SessionPool
from diptych.transport.tls import Credentials, dial_of

SOON_S = 20.0


@dataclass
class RunningRouter:
    """A router, and what it knows."""

    address: str
    dispatcher: Dispatcher
    registry: StreamRegistry
    sharing: Sharing
    peers: Peers
    server: Server
    num_joins: int = 0

    @property
    def members(self) -> list[str]:
        return [record.join.member_id for record in self.registry.records()]

    @property
    def num_leases(self) -> int:
        return len(self.dispatcher.ledger.entries)

    def load(self, member_id: str) -> Load:
        record = self.registry.find(member_id)
        return record.load if record is not None else Load()

    def standing(self, member_id: str) -> Standing:
        return self.dispatcher.ledger.standing(WorkerId(member_id))

    async def stop(self) -> None:
        """As if it were killed."""
        await self.server.stop()


@asynccontextmanager
async def router(
    listen: str = "127.0.0.1:0",
    credentials: Credentials | None = None,
    *,
    pairs: Pairs | None = None,
) -> AsyncIterator[str]:
    """Its address; stopped without a grace at the end. It runs canaries if workers must prove."""
    async with running_router(listen, credentials=credentials, pairs=pairs) as made:
        yield made.address


@asynccontextmanager
async def running_router(
    listen: str = "127.0.0.1:0",
    router_id: str = "router-1",
    credentials: Credentials | None = None,
    pairs: Pairs | None = None,
) -> AsyncIterator[RunningRouter]:
    """The same with all that can be seen from inside."""
    registry = StreamRegistry()
    pairs = pairs or Pairs()
    dispatcher = Dispatcher(registry, seed=hash(router_id), pairs=pairs)
    sharing = Sharing(dispatcher)
    dial = dial_of(credentials)
    canaries = Canaries(pairs, SessionPool(router_id, dial=dial))
    trying = canaries if pairs.must_prove else None
    service = RouterService(dispatcher, registry, Metrics("router"), sharing, router_id, trying)
    peers = Peers((), sharing, service.wake, dial=dial)
    async with Server(listen, [service.register], grace_s=0, credentials=credentials) as server:
        made = RunningRouter(server.address, dispatcher, registry, sharing, peers, server)

        def count(member_id: str, record: Record | None) -> None:
            made.num_joins += record is not None

        registry.watch(count)
        listening = asyncio.create_task(peers.run())
        yield made
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await canaries.close()
    service.stop()


@asynccontextmanager
async def routers(count: int) -> AsyncIterator[list[RunningRouter]]:
    """Several that do not know of each other yet."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_router(router_id=f"router-{number + 1}"))
            for number in range(count)
        ]


class Pretender:
    """A member that reports what it is told to, and drains as workers do."""

    def __init__(self, routers: str, member_id: str, slots: int = 4) -> None:
        role = Role(member_id.partition("-")[0])
        join = Join(
            member_id, role, f"{member_id}:1", Incarnation(0xC0FFEE), b"n" * 16, b"l" * 16,
            model="m", max_model_len=512, block_tokens=16,
            num_blocks=25 * slots, num_slots=slots, pid=77,
        )  # fmt: skip
        self.load = Load(free_slots=slots, free_blocks=25 * slots)
        self.heard: list[Drain] = []
        self.reporter = Reporters(routers, join, lambda: self.load, on_drain=self._drain)

    def report(self, **fields: Any) -> None:
        """Change the load."""
        self.load = replace(self.load, **fields)
        self.reporter.notify()

    def _drain(self, wish: Drain) -> None:
        self.heard.append(wish)
        self.load = replace(self.load, draining=wish.is_on)


@asynccontextmanager
async def member(routers: str, member_id: str, *, slots: int = 4) -> AsyncIterator[Pretender]:
    """Joined at one of the routers, whose addresses are comma-separated; it leaves at the end."""
    made = Pretender(routers, member_id, slots)
    joined = asyncio.ensure_future(made.reporter.fleet_changed())
    reporting = asyncio.create_task(made.reporter.run())
    async with asyncio.timeout(SOON_S):
        await joined
    yield made
    reporting.cancel()
    with suppress(asyncio.CancelledError):
        await reporting


@asynccontextmanager
async def reporting(
    routers: str, role: Role, engine: EnginePort | None = None, rank: Rank | None = None
) -> AsyncIterator[Reporters]:
    """A scripted worker, or a gateway, that reports to all routers; it leaves at the end."""
    join = Join("gateway-1", role)
    load: Callable[[], Load] = Load
    if engine is not None and rank is not None:
        counts = engine.counts()
        join = Join(
            rank.worker_id, role, rank.address, rank.incarnation, engine.namespace,
            engine.layout.digest, "m", engine.max_model_len, engine.layout.grain,
            counts.num_blocks, counts.num_slots,
        )  # fmt: skip
        load = partial(_load, engine)
    reporters = Reporters(routers, join, load)
    running = asyncio.create_task(reporters.run())
    yield reporters
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def _load(engine: EnginePort) -> Load:
    counts = engine.counts()
    return Load(
        running=counts.running,
        waiting=counts.waiting,
        free_blocks=counts.free_blocks,
        free_slots=counts.free_slots,
        reservations=counts.reserved,
    )
