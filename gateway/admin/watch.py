"""The platform live: a stream of server-sent events, a snapshot about every second."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import StreamingResponse

from diptych.core.errors import DiptychError, Overloaded
from diptych.gateway.admin import snapshots
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Site
from diptych.gateway.sse import event
from diptych.gateway.tenancy.desk import Actor
from diptych.kvcache_store import client as kvcache
from diptych.router import client as router
from diptych.router.client import Fleet
from diptych.transport.channel import Backoff

PERIOD_S = 1.0
MAX_VIEWERS = 32
MAX_STREAM_S = 600.0  # then a viewer comes again, and its key is looked at again
STORES_EVERY_S = 3.0
STORE_ANSWER_S = 2.0

Clock = Callable[[], float]

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def routes(watch: "Watch", entrance: Entrance) -> APIRouter:
    """Under /admin/v1."""
    made = APIRouter(tags=["platform"])
    Reader = Annotated[Actor, Depends(entrance.reader)]

    @made.get("/watch", response_class=StreamingResponse)
    async def follow(by: Reader) -> StreamingResponse:
        """Server-sent events `platform`: pools, workers, queue, stores, decisions, each second."""
        return StreamingResponse(watch.stream(), 200, _HEADERS, "text/event-stream")

    return made


class Watch:
    """Follows the routers for whoever watches, and for nobody otherwise."""

    def __init__(
        self, site: Site, period_s: float = PERIOD_S, clock: Clock = time.monotonic
    ) -> None:
        self._site = site
        self._period_s = period_s
        self._clock = clock
        self._stores = _Stores(site, clock)
        self._closing = asyncio.Event()
        self._num_viewers = 0

    def close(self) -> None:
        """End every stream."""
        self._closing.set()

    def stream(self) -> AsyncIterator[bytes]:
        """Events until the viewer leaves, the gateway stops, or it is time to come again."""
        if self._num_viewers >= MAX_VIEWERS:
            raise Overloaded("too many watch already", retry_after_s=5)
        return self._events()

    async def _events(self) -> AsyncIterator[bytes]:
        until_s = self._clock() + MAX_STREAM_S
        self._num_viewers += 1
        fleets = self._fleets()
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while self._clock() < until_s:
                heard = asyncio.ensure_future(anext(fleets))
                await asyncio.wait([heard, closing], return_when=asyncio.FIRST_COMPLETED)
                if not heard.done():
                    heard.cancel()
                    await asyncio.wait([heard])
                    return
                fleet, is_live = heard.result()
                stores = await self._stores.latest()
                yield event(
                    snapshots.platform(self._site, fleet, stores, is_live=is_live), "platform"
                )
        finally:
            self._num_viewers -= 1
            closing.cancel()
            await fleets.aclose()

    async def _fleets(self) -> AsyncGenerator[tuple[Fleet | None, bool], None]:
        """What the routers say; while all are away, what one last said to this gateway."""
        site, backoff = self._site, Backoff(first_s=0.5, cap_s=5.0)
        while True:
            try:
                known = ",".join(site.routers())
                async for fleet in router.watch(known, self._period_s, dial=site.dial):
                    backoff.succeeded()
                    yield fleet, True
                    if known != ",".join(site.routers()):
                        break
            except DiptychError:
                yield site.fleet(), False
            await asyncio.sleep(backoff.failed())


class _Stores:
    """What the nodes of the KV cache say, asked at most every few seconds."""

    def __init__(self, site: Site, clock: Clock) -> None:
        self._site = site
        self._clock = clock
        self._asked_s = -STORES_EVERY_S
        self._answers: list[dict[str, Any]] = []
        self._turn = asyncio.Lock()

    async def latest(self) -> list[dict[str, Any]]:
        async with self._turn:
            if self._clock() >= self._asked_s + STORES_EVERY_S:
                self._answers = await asyncio.gather(*map(self._ask, self._site.stores()))
                self._asked_s = self._clock()
        return self._answers

    async def _ask(self, address: str) -> dict[str, Any]:
        try:
            stats = await kvcache.stats(address, STORE_ANSWER_S, dial=self._site.dial)
        except DiptychError as error:
            return snapshots.lost_store(address, error.message)
        return snapshots.store(address, stats)
