"""uvicorn, set up for streams that are long and a shut-down that is orderly."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from diptych.core.errors import Misconfigured
from diptych.gateway.app import App
from diptych.gateway.protocol import Protocol

DRAIN_S = 6.0  # running answers may end; then they are told why they do not
CUT_S = 2  # for telling them
IDLE_S = 75  # of a connection, longer than clients and load balancers keep one: they close it first


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A port to listen on; Misconfigured if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. asyncio sets it only where the protocol number says TCP, and here
        # it is 0; without it a small write waits for the client's delayed ACK, some 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return listener
    except OSError as error:
        variable = f"DIPTYCH_{flag.strip('-').replace('-', '_').upper()}"
        raise Misconfigured(
            f"cannot listen on {host} port {port}: {error.strerror or error}. Choose another with "
            f"{flag} or {variable} (0 = any free one), another address with --host"
        ) from error


class Server(uvicorn.Server):
    """uvicorn without its signal handling and logging set-up: both are ours."""

    def __init__(self, application: App, context: ssl.SSLContext | None) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,  # whom to trust is our own setting
                timeout_graceful_shutdown=int(DRAIN_S) + CUT_S,
                timeout_keep_alive=IDLE_S,  # else a request may meet a connection as it closes
                http=Protocol,
                ws="none",
                lifespan="off",
                ssl_context_factory=(lambda config, default: context) if context else None,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
