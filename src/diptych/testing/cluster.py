"""A platform without HTTP in this process: a real router, workers that come and go, one gateway.

All of them speak real gRPC. Engines are scripted and check every byte they adopt, unless a test
gives others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.decode_service.client import DecodeClient
from diptych.decode_service.service import DecodeService
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Hops
from diptych.gateway.notes import Course
from diptych.gateway.pipeline import Call, Pipeline
from diptych.prefill_service.client import PrefillClient
from diptych.prefill_service.service import PrefillService
from diptych.router.client import Fleet, Join, Load, Reporter, RouterClient, status
from diptych.router.pairs import Pairs
from diptych.testing.fleet import SOON_S, router
from diptych.testing.links import Link, link_to
from diptych.testing.scripted import Script
from diptych.testing.workers import Worker, decode_worker, prefill_worker
from diptych.transport.session import SessionPool

SILENCE_S = 3.0

AnyWorker: TypeAlias = Worker[PrefillService] | Worker[DecodeService]


@dataclass
class Cluster:
    """Workers are named `prefill-1`, `decode-2` or `hybrid-3`."""

    router: str  # its address
    pool: SessionPool
    pipeline: Pipeline
    workers: dict[str, AnyWorker] = field(default_factory=dict)
    _lives: dict[str, AsyncExitStack] = field(default_factory=dict)
    _links: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def add(self, name: str, script: Script | None = None, **options: Any) -> AnyWorker:
        """Start a worker and let it join; options are those of `prefill_worker` or the other."""
        role = Role(name.partition("-")[0])
        life = self._lives[name] = AsyncExitStack()
        started = prefill_worker if role is Role.PREFILL else decode_worker
        worker: AnyWorker = await life.enter_async_context(started(name, script, **options))
        await life.enter_async_context(reporting(self.router, role, worker))
        self.workers[name] = worker
        return worker

    async def kill(self, name: str) -> None:
        """End a worker without a word to anybody."""
        del self.workers[name]
        await self._lives.pop(name).aclose()

    async def linked(self, name: str) -> Link:
        """Decode workers reach a prefill worker over this link from now on, dead or alive."""
        worker = self.workers[name]
        link = await self._links.enter_async_context(link_to(worker.rank.address))
        assert isinstance(worker.service, PrefillService)
        worker.service.holdings.address = link.address
        return link

    async def answer(
        self,
        generation: Generation,
        into: list[int] | None = None,
        on_over: Callable[[Course], None] = lambda course: None,
    ) -> list[int]:
        """All tokens that a client is sent, as they come."""
        tokens = [] if into is None else into

        def take(emit: on.Emit) -> bool:
            tokens.extend(emit.token_ids)
            return True

        await self.pipeline.run(Call(generation, (), "tenant"), take, on_over)
        return tokens

    async def seen(self) -> Fleet:
        """What the router knows."""
        return await status(self.router, SOON_S)

    async def settled(self, within_s: float = 15.0) -> None:
        """The ledger check: wait until nothing of any request is left anywhere."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while leaks := await self._leaks():
            assert loop.time() < until_s, leaks
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for name in list(self.workers):
            await self.kill(name)
        await self._links.aclose()

    async def _leaks(self) -> list[str]:
        seen = await self.seen()
        leaks = [f"{seen.leases} leases"] * bool(seen.leases)
        leaks += [f"{seen.queued} in the queue"] * bool(seen.queued)
        return leaks + [
            f"{name}: {load_of(worker)}"
            for name, worker in self.workers.items()
            if not worker.is_at_baseline() or _promises(worker)
        ]


@asynccontextmanager
async def cluster(
    deadlines: Deadlines | None = None, *, pairs: Pairs | None = None
) -> AsyncIterator[Cluster]:
    """Without workers; what is left when the body has ended is an error.

    The router runs canaries if `pairs` must be proven.
    """
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(router(pairs=pairs))
        places = RouterClient(address)
        stack.push_async_callback(places.close)
        pool = SessionPool("gateway-1", silence_s=SILENCE_S)
        stack.push_async_callback(pool.close)
        pipeline = Pipeline(Hops(places, PrefillClient(pool), DecodeClient(pool)), deadlines)
        stack.push_async_callback(pipeline.close)
        made = Cluster(address, pool, pipeline)
        stack.push_async_callback(made.close)
        yield made
        await made.settled()


@asynccontextmanager
async def reporting(address: str, role: Role, worker: AnyWorker) -> AsyncIterator[None]:
    """Keep a worker a member of the router's fleet, as its process would."""
    counts, engine, sessions = worker.engine.counts(), worker.engine, worker.service.sessions
    join = Join(
        worker.rank.worker_id, role, worker.rank.address, worker.rank.incarnation,
        engine.namespace, engine.layout.digest, model="scripted",
        max_model_len=engine.max_model_len, block_tokens=engine.layout.grain,
        num_blocks=counts.num_blocks, num_slots=counts.num_slots, keep_tokens=engine.keep_tokens,
        is_deterministic=True,
    )  # fmt: skip
    reporter = Reporter(
        address,
        join,
        lambda: load_of(worker),
        on_drain=lambda wish: sessions.stand_aside(wish.is_on, wish.limit_s),
        block_log=engine.block_log,
    )
    worker.listeners.append(lambda output: reporter.notify())
    joined = asyncio.ensure_future(reporter.fleet_changed())
    running = asyncio.create_task(reporter.run())
    try:
        async with asyncio.timeout(SOON_S):
            await joined
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def load_of(worker: AnyWorker) -> Load:
    """What its reports say."""
    counts, service = worker.engine.counts(), worker.service
    return Load(
        running=counts.running,
        waiting=counts.waiting,
        swapped=counts.swapped,
        free_blocks=counts.free_blocks,
        free_slots=counts.free_slots,
        sessions=service.sessions.num_sessions,
        tokens_total=counts.tokens_total,
        preemptions_total=counts.preemptions_total,
        draining=service.sessions.is_draining,
        **_promises(worker),
    )


def _promises(worker: AnyWorker) -> dict[str, int]:
    """Tickets, reservations and transfers, if there are any."""
    service = worker.service
    if isinstance(service, PrefillService):
        found = {"tickets": len(service.holdings.tickets)}
    else:
        found = {"reservations": service.num_reservations, "pulls": service.num_pulls}
    return {name: number for name, number in found.items() if number}
