"""Run a router: `python -m diptych.router`, or `diptych router`."""

import asyncio
import logging

from diptych.config import RouterSettings
from diptych.core.phases import Role
from diptych.router.dispatcher import Dispatcher
from diptych.router.registry import StreamRegistry
from diptych.router.service import RouterService
from diptych.telemetry import logs
from diptych.telemetry.endpoint import Endpoint
from diptych.telemetry.metrics import Metrics
from diptych.transport.server import Server, stop_signals

log = logging.getLogger(__name__)


def main(settings: RouterSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup(Role.ROUTER, settings.log_level, settings.log_format)
    asyncio.run(_serve(settings))


async def _serve(settings: RouterSettings) -> None:
    metrics = Metrics(Role.ROUTER)
    registry = StreamRegistry()
    service = RouterService(Dispatcher(registry), registry, metrics)
    with stop_signals() as stopped:
        async with (
            Server(settings.listen, [service.register]) as server,
            Endpoint(settings.metrics_listen, {"/metrics": metrics.page()}),
        ):
            log.info("router ready at=%s", server.address)
            await stopped.wait()
    service.stop()


if __name__ == "__main__":
    main(RouterSettings.load({}))
