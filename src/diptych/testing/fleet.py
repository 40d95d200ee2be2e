"""A real router on loopback, and members that only pretend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from diptych.core.ids import Incarnation
from diptych.core.phases import Role
from diptych.router.client import Drain, Join, Load, Reporter
from diptych.router.dispatcher import Dispatcher
from diptych.router.registry import StreamRegistry
from diptych.router.service import RouterService
from diptych.telemetry.metrics import Metrics
from diptych.transport.server import Server
from diptych.transport.tls import Credentials

SOON_S = 20.0


@asynccontextmanager
async def router(
    listen: str = "127.0.0.1:0", credentials: Credentials | None = None
) -> AsyncIterator[str]:
    """Its address; stopped without a grace at the end."""
    registry = StreamRegistry()
    service = RouterService(Dispatcher(registry), registry, Metrics("router"))
    async with Server(listen, [service.register], grace_s=0, credentials=credentials) as server:
        yield server.address
    service.stop()


class Pretender:
    """A member that reports what it is told to, and drains as workers do."""

    def __init__(self, address: str, member_id: str) -> None:
        role = Role(member_id.partition("-")[0])
        join = Join(
            member_id, role, f"{member_id}:1", Incarnation(0xC0FFEE), b"n" * 16, b"l" * 16,
            model="m", max_model_len=512, block_tokens=16, num_blocks=100, num_slots=4, pid=77,
        )  # fmt: skip
        self.load = Load(free_slots=4, free_blocks=100)
        self.heard: list[Drain] = []
        self.reporter = Reporter(address, join, lambda: self.load, on_drain=self._drain)

    def report(self, **fields: Any) -> None:
        """Change the load."""
        self.load = replace(self.load, **fields)
        self.reporter.notify()

    def _drain(self, wish: Drain) -> None:
        self.heard.append(wish)
        self.load = replace(self.load, draining=wish.is_on)


@asynccontextmanager
async def member(address: str, member_id: str) -> AsyncIterator[Pretender]:
    """Joined; it leaves at the end."""
    made = Pretender(address, member_id)
    joined = asyncio.ensure_future(made.reporter.fleet_changed())
    reporting = asyncio.create_task(made.reporter.run())
    async with asyncio.timeout(SOON_S):
        await joined
    yield made
    reporting.cancel()
    with suppress(asyncio.CancelledError):
        await reporting
