"""Calling a peer: channels, deadlines with a named end, back-off."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio

from diptych.core.errors import Expired
from diptych.transport.errors import from_rpc

MESSAGE_BYTES = 64 << 20
KEEPALIVE_MS = 2000
KEEPALIVE_TIMEOUT_MS = 3000

Reply = TypeVar("Reply")

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a channel is a connection: bulk never delays control
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


Dial = Callable[[str], grpc.aio.Channel]


def connect(address: str) -> grpc.aio.Channel:
    """A connection of its own to `host:port`, without TLS; made on first use."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)


async def call(
    method: Callable[..., Awaitable[Reply]], request: object, *, timeout_s: float
) -> Reply:
    """One unary call; DiptychError instead of a gRPC error, Expired when the deadline passes."""
    try:
        return await method(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error


@asynccontextmanager
async def deadline(timeout_s: float, what: str, *, code: str | None = None) -> AsyncIterator[None]:
    """Bound the body; Expired saying what was awaited and how long."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise Expired(f"{what} took longer than {timeout_s:g} s", code=code) from error


class Backoff:
    """Delays that double up to a cap, each drawn between half and all of it."""

    def __init__(
        self, first_s: float = 0.1, cap_s: float = 5.0, draw: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._draw = draw
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    def failed(self) -> float:
        """Count a failure; seconds to wait before the next try."""
        whole = min(self._cap_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return whole * (0.5 + 0.5 * self._draw())

    def succeeded(self) -> None:
        self._failures = 0
