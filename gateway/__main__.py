"""`python -m diptych.gateway`: build the parts, serve HTTP, leave in order."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from diptych.config import GatewaySettings, secrets_of
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.decode_service.client import DecodeClient
from diptych.gateway import app, served
from diptych.gateway.chat import ChatEndpoint
from diptych.gateway.hops import Hops
from diptych.gateway.measures import Measures
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.stream import Patience
from diptych.prefill_service.client import PrefillClient
from diptych.router.client import Fleet, Join, Load, Reporter, RouterClient
from diptych.telemetry import logs
from diptych.telemetry import metrics as m
from diptych.telemetry.endpoint import Endpoint
from diptych.transport.server import stop_signals
from diptych.transport.session import SessionPool

log = logging.getLogger(__name__)

DRAIN_S = 6.0  # running answers may end; then they are told why they do not
CUT_S = 2  # for telling them


def main(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup("gateway", settings.log_level)
    _, master_key = secrets_of(settings)
    listener = bind(settings.host, settings.port)
    asyncio.run(_serve(settings, master_key, listener))


def bind(host: str, port: int) -> socket.socket:
    """The public port; Misconfigured if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Misconfigured(
            f"cannot listen on {host} port {port}: {error.strerror or error}. Choose another with "
            "--port or DIPTYCH_PORT (0 = any free one), another address with --host"
        ) from error


async def _serve(settings: GatewaySettings, master_key: bytes, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    metrics = m.Metrics(Role.GATEWAY)
    measures = Measures(metrics)
    pool = SessionPool(settings.gateway_id)
    router = RouterClient(settings.router)
    endpoint = Endpoint(settings.metrics_listen, {"/metrics": metrics.page()})
    await endpoint.start()
    join = Join(
        settings.gateway_id,
        Role.GATEWAY,
        pid=os.getpid(),
        http_address=address,
        metrics_address=endpoint.address,
    )
    reporter = Reporter(settings.router, join, lambda: _load(chat, pool))
    model = served.load(
        settings.checkpoint, settings.model_name, master_key, lambda: _heard(reporter)
    )
    pipeline = Pipeline(Hops(router, PrefillClient(pool), DecodeClient(pool)), measures=measures)
    chat = ChatEndpoint(model, pipeline, Patience(), reporter.notify)
    metrics.pull(lambda: _readings(chat, pool))
    server = _Server(app.build(model, chat, measures, lambda: reporter.is_connected))
    reporting = asyncio.create_task(reporter.run())
    try:
        with stop_signals() as stopped:
            serving = asyncio.create_task(server.serve([listener]))
            stopping = asyncio.create_task(stopped.wait())
            log.info("serving http=http://%s model=%s", address, settings.model_name)
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            server.should_exit = True
            await chat.drain(DRAIN_S)
            await serving
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])
        endpoint.close()
        await pipeline.close()
        await pool.close()
        await router.close()
        model.close()


def _heard(reporter: Reporter) -> Fleet | None:
    return reporter.fleet


def _readings(chat: ChatEndpoint, pool: SessionPool) -> Iterator[m.Reading]:
    yield m.REQUESTS.at(chat.num_running, "running")
    yield m.SESSIONS.at(pool.num_sessions)


def _load(chat: ChatEndpoint, pool: SessionPool) -> Load:
    return Load(streams=chat.num_running, sessions=pool.num_sessions, draining=chat.is_draining)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling and logging set-up: both are ours."""

    def __init__(self, application: app.App) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                timeout_graceful_shutdown=int(DRAIN_S) + CUT_S,
                h11_max_incomplete_event_size=32 << 10,
                ws="none",
                lifespan="off",
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


if __name__ == "__main__":
    main(GatewaySettings.load({}))
