"""Run a node of the KV cache: `python -m diptych.kvcache_store`, or `diptych store`."""

import asyncio
import logging
import time

from diptych.config import StoreSettings, secrets_of
from diptych.core.phases import Role
from diptych.kvcache_store.build import build
from diptych.kvcache_store.caretaker import Caretaker
from diptych.kvcache_store.desk import Desk
from diptych.kvcache_store.house import House
from diptych.kvcache_store.measures import readings
from diptych.kvcache_store.service import StoreService
from diptych.kvcache_store.tiers import Tiers
from diptych.telemetry import logs
from diptych.telemetry import metrics as m
from diptych.telemetry.endpoint import Endpoint
from diptych.transport import tls
from diptych.transport.allocator import keep_freed_memory
from diptych.transport.membership import Announced, Membership
from diptych.transport.server import Server, stop_signals

FLUSH_S = 8.0  # when told to stop; who told us waits ten seconds

log = logging.getLogger(__name__)


def main(settings: StoreSettings) -> None:
    """Serve until SIGTERM or SIGINT; then write what is queued."""
    logs.setup(settings.store_id, settings.log_level, settings.log_format, Role.STORE)
    keep_freed_memory()
    asyncio.run(_serve(settings))


async def _serve(settings: StoreSettings) -> None:
    credentials = tls.load(settings, Role.STORE)
    with House(settings.cache_folder) as house, stop_signals() as stopped:
        tiers = build(settings, house)
        await tiers.open()
        caretaker = Caretaker(tiers, clock=time.time)
        desk = Desk(settings.store_id, tiers, caretaker, time.time)
        metrics = m.Metrics(Role.STORE)
        lookups = metrics.histogram(m.TIER_LOOKUP_SECONDS)
        loop = asyncio.get_running_loop()
        metrics.pull(lambda: readings(tiers, time.time, loop.time))
        service = StoreService(tiers, desk, on_lookup=lookups.observe)
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(tiers.run()), group.create_task(caretaker.run())]
            async with (
                Server(settings.listen, [service.register], credentials=credentials) as server,
                Endpoint(settings.metrics_listen, {"/metrics": metrics.page()}),
            ):
                house.announce(server.address, is_secure=credentials is not None)
                life = tiers.events.incarnation
                me = Announced(Role.STORE, settings.store_id, server.address, life)
                announcing = [group.create_task(each.run()) for each in _memberships(settings, me)]
                log.info("store ready at=%s", server.address)
                await stopped.wait()
                for task in announcing:
                    task.cancel()
            await _flush(tiers)
            for task in work:
                task.cancel()
        await tiers.close()


def _memberships(settings: StoreSettings, me: Announced) -> list[Membership]:
    """Where this store is announced: nowhere, unless there is a Redis."""
    if settings.redis_url is None:
        return []
    cluster_secret, _ = secrets_of(settings)  # which a store needs for nothing else
    membership = Membership(settings.redis_url.get_secret_value(), cluster_secret)
    membership.announce(me)
    return [membership]


async def _flush(tiers: Tiers) -> None:
    """Write what is queued, if the disk is fast enough for that."""
    log.info("stopping queued_bytes=%d", tiers.queued_bytes)
    try:
        async with asyncio.timeout(FLUSH_S):
            await tiers.flush()
    except TimeoutError:
        log.warning("the disk is too slow; dropped queued_bytes=%d", tiers.queued_bytes)


if __name__ == "__main__":
    main(StoreSettings.load({}))
