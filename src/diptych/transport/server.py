"""The one life of a gRPC server: bind, serve, drain, stop; and the one interceptor."""

import asyncio
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from diptych.core.errors import Broken, DiptychError, Misconfigured
from diptych.transport.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MESSAGE_BYTES
from diptych.transport.errors import to_status
from diptych.transport.roles import check
from diptych.transport.tls import Credentials, holder_of

log = logging.getLogger(__name__)

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second process on the port is an error, not a lottery
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)

HUNG_S = 30.0  # an engine that takes longer for one step is restarted

Register = Callable[[grpc.aio.Server], object]
Context = Any  # grpc.aio.ServicerContext[request, reply], whatever the method's types
Guard = Callable[[str, Context], None]  # method, call: raises what it is refused with


class Server:
    """A gRPC server as an async context: bound and serving inside, stopped after.

    With credentials it talks TLS, to stations that the table of roles lets call.
    """

    def __init__(
        self,
        listen: str,
        services: Sequence[Register],
        *,
        grace_s: float = 0.5,
        credentials: Credentials | None = None,
    ) -> None:
        self._listen = listen
        self._services = services
        self._grace_s = grace_s
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """host:port that peers use; the port is real also when 0 was asked for."""
        return f"{self._listen.rpartition(':')[0]}:{self.port}"

    async def start(self) -> None:
        """Bind and serve; Misconfigured if the address cannot be had."""
        guard = _open_to_all if self._credentials is None else _by_role(self._credentials)
        server = grpc.aio.server(interceptors=[_Interceptor(guard)], options=_OPTIONS)
        for register in self._services:
            register(server)
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._listen)
            else:
                self.port = server.add_secure_port(self._listen, self._credentials.for_server())
        except RuntimeError as error:
            raise Misconfigured(
                f"cannot listen on {self._listen}: the port is taken or the address is not ours"
            ) from error
        await server.start()
        self._server = server

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, let running ones end within the grace, cut the rest."""
        if self._server is not None:
            await self._server.stop(self._grace_s if grace_s is None else grace_s)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets, while the context lasts."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def watch(idle_s: Callable[[], float], limit_s: float = HUNG_S) -> None:
    """End the process, by Broken, when its engine has not answered for too long."""
    while True:
        silent_s = idle_s()
        if silent_s >= limit_s:
            raise Broken(f"the engine has not answered for {silent_s:.0f} s")
        await asyncio.sleep(max(0.1, limit_s - silent_s))  # it cannot be over before then


def _open_to_all(method: str, context: Context) -> None:
    """Without TLS nobody can say who calls."""


def _by_role(credentials: Credentials) -> Guard:
    def guard(method: str, context: Context) -> None:
        check(method, holder_of(context), credentials.holder.station)

    return guard


class _Interceptor(grpc.aio.ServerInterceptor):
    """Asks the guard before every method; turns exceptions into a status, code and message."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        wrap, behaviour = _shape(handler)
        return wrap(
            _translated(behaviour, str(handler_call_details.method), self._guard),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _shape(handler: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary


def _translated(behaviour: Callable[..., Any], method: str, guard: Guard) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: object, context: Context) -> AsyncIterator[object]:
            try:
                guard(method, context)
                async for reply in behaviour(request, context):
                    yield reply
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await _abort(context, error, method)

        return stream

    async def answer(request: object, context: Context) -> object:
        writes = _Writes(context)
        try:
            guard(method, context)
            reply = await behaviour(request, writes)
            await writes.ended()
            return reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await writes.ended()
            await _abort(context, error, method)
            raise AssertionError("abort raises") from error

    return answer


class _Writes:
    """A call's context whose writes may be given up.

    gRPC takes no status while a message is on its way, and cannot call one back: a call that ends
    behind such a write would never end for its peer. So the message goes on alone, and the status
    waits until the peer has read it or has gone.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: object) -> None:
        self._last = asyncio.ensure_future(self._context.write(message))
        self._last.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.shield(self._last)

    async def ended(self) -> None:
        """Until the last message has left or cannot any more."""
        if self._last is not None:
            await asyncio.wait([self._last])


async def _abort(context: Context, error: Exception, method: str) -> None:
    if not isinstance(error, DiptychError):
        log.exception("rpc failed method=%s", method, exc_info=error)
        error = Broken(f"{method} failed: {type(error).__name__}")
    status, metadata = to_status(error)
    await context.abort(status, error.message, metadata)
