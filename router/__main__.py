"""Run a router: `python -m diptych.router`, or `diptych router`."""

import asyncio
import logging
from pathlib import Path

from diptych.config import RouterSettings, addresses_of, secrets_of
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.router import decisions
from diptych.router.canary import Canaries
from diptych.router.decisions import Difference, Recorder
from diptych.router.dispatcher import Dispatcher
from diptych.router.pairs import Pairs
from diptych.router.peers import Peers
from diptych.router.registry import StreamRegistry
from diptych.router.service import RouterService
from diptych.router.sharing import Sharing, new_life
from diptych.router.store_news import StoreNews
from diptych.telemetry import logs
from diptych.telemetry.endpoint import Endpoint
from diptych.telemetry.metrics import Metrics
from diptych.transport import tls
from diptych.transport.membership import Announced, Membership, addresses_in
from diptych.transport.server import Server, stop_signals
from diptych.transport.session import SessionPool

CANARY_UNUSED_S = 5.0  # then a canary's session ends

log = logging.getLogger(__name__)


def main(settings: RouterSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup(settings.router_id, settings.log_level, settings.log_format, Role.ROUTER)
    asyncio.run(_serve(settings))


async def _serve(settings: RouterSettings) -> None:
    credentials = tls.load(settings, Role.ROUTER)
    metrics = Metrics(Role.ROUTER)
    registry = StreamRegistry()
    recorder = Recorder(settings.decisions_file) if settings.decisions_file else None
    pairs = Pairs(must_prove=settings.canary == "on")
    dial = tls.dial_of(credentials)
    pool = SessionPool(settings.router_id, unused_s=CANARY_UNUSED_S, dial=dial)
    canaries = Canaries(pairs, pool)
    life = new_life()
    on_decision = recorder.record if recorder else None
    dispatcher = Dispatcher(registry, on_decision=on_decision, seed=life, pairs=pairs)
    sharing = Sharing(dispatcher, life)
    trying = canaries if pairs.must_prove else None
    service = RouterService(dispatcher, registry, metrics, sharing, settings.router_id, trying)
    peers = Peers(addresses_of(settings.peers), sharing, service.wake, dial=dial)
    stores = addresses_of(settings.stores)
    news = StoreNews(dispatcher.index, dial=dial)
    metrics.pull(news.readings)
    news.use(stores)
    with stop_signals() as stopped:
        async with (
            Server(settings.listen, [service.register], credentials=credentials) as server,
            Endpoint(settings.metrics_listen, {"/metrics": metrics.page()}),
            asyncio.TaskGroup() as group,
        ):
            work = [group.create_task(peers.run())]
            if (membership := _membership(settings)) is not None:
                me = Announced(Role.ROUTER, settings.router_id, server.address, life)
                membership.announce(me)
                membership.watch(
                    Role.ROUTER, lambda found: peers.use(addresses_in(set(found) - {me}))
                )
                membership.watch(Role.STORE, lambda found: news.use(addresses_in(found, stores)))
                work.append(group.create_task(membership.run()))
            log.info("router ready at=%s", server.address)
            await stopped.wait()
            for task in work:
                task.cancel()
    service.stop()
    await canaries.close()
    await news.close()
    if recorder is not None:
        recorder.close()


def _membership(settings: RouterSettings) -> Membership | None:
    if settings.redis_url is None:
        return None  # a router needs no secret for anything else
    cluster_secret, _ = secrets_of(settings)
    return Membership.of(settings.redis_url, cluster_secret)


def replay(file: Path) -> tuple[int, list[Difference]]:
    """Decide again what a router recorded: how many decisions, and which came out otherwise."""
    try:
        with file.open("rb") as lines:
            outcomes = list(decisions.replay(lines))
    except OSError as error:
        raise Misconfigured(f"{file}: {error.strerror or error}") from error
    return len(outcomes), [outcome for outcome in outcomes if outcome is not None]


if __name__ == "__main__":
    main(RouterSettings.load({}))
