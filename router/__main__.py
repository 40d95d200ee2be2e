"""Run a router: `python -m diptych.router`, or `diptych router`."""

import asyncio
import logging
from pathlib import Path

from diptych.config import RouterSettings, addresses_of
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.router import decisions
from diptych.router.decisions import Difference, Recorder
from diptych.router.dispatcher import Dispatcher
from diptych.router.registry import StreamRegistry
from diptych.router.service import RouterService
from diptych.router.store_news import StoreNews
from diptych.telemetry import logs
from diptych.telemetry.endpoint import Endpoint
from diptych.telemetry.metrics import Metrics
from diptych.transport import tls
from diptych.transport.server import Server, stop_signals

log = logging.getLogger(__name__)


def main(settings: RouterSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup(Role.ROUTER, settings.log_level, settings.log_format)
    asyncio.run(_serve(settings))


async def _serve(settings: RouterSettings) -> None:
    credentials = tls.load(settings, Role.ROUTER)
    metrics = Metrics(Role.ROUTER)
    registry = StreamRegistry()
    recorder = Recorder(settings.decisions_file) if settings.decisions_file else None
    dispatcher = Dispatcher(registry, on_decision=recorder.record if recorder else None)
    service = RouterService(dispatcher, registry, metrics)
    news = StoreNews(dispatcher.index, dial=tls.dial_of(credentials))
    metrics.pull(news.readings)
    news.use(addresses_of(settings.stores))
    with stop_signals() as stopped:
        async with (
            Server(settings.listen, [service.register], credentials=credentials) as server,
            Endpoint(settings.metrics_listen, {"/metrics": metrics.page()}),
        ):
            log.info("router ready at=%s", server.address)
            await stopped.wait()
    service.stop()
    await news.close()
    if recorder is not None:
        recorder.close()


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
