"""A channel that outlives its credentials: when they are replaced, new calls connect anew."""

import asyncio
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio

Secrets = TypeVar("Secrets")


class _Line(Generic[Secrets]):
    """One connection, and what runs on it."""

    def __init__(self, secrets: Secrets, channel: grpc.aio.Channel) -> None:
        self.secrets = secrets
        self.channel = channel
        self.calls: weakref.WeakSet[Any] = weakref.WeakSet()  # who drops a call ends it


class RenewedChannel(grpc.aio.Channel, Generic[Secrets]):
    """Asks `newest` before every call; what runs ends on the connection it began on."""

    def __init__(
        self, newest: Callable[[], Secrets], connect: Callable[[Secrets], grpc.aio.Channel]
    ) -> None:
        self._newest = newest
        self._connect = connect
        self._line = self._open(newest())
        self._old: set[_Line[Secrets]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        return self._callable("unary_unary", method, options)

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        return self._callable("unary_stream", method, options)

    def stream_unary(self, *method: Any, **options: Any) -> Any:
        return self._callable("stream_unary", method, options)

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        return self._callable("stream_stream", method, options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._is_closed = True
        lines = [self._line, *self._old]
        self._old.clear()
        await asyncio.gather(*(line.channel.close(grace) for line in lines), *self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _open(self, secrets: Secrets) -> _Line[Secrets]:
        return _Line(secrets, self._connect(secrets))

    def _current(self) -> _Line[Secrets]:
        newest = self._newest()
        if newest is not self._line.secrets and not self._is_closed:
            old, self._line = self._line, self._open(newest)
            self._old.add(old)
            self._end_unused(old)
        return self._line

    def _callable(self, kind: str, method: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What a stub keeps: it finds the connection when it is called."""

        def begin(line: _Line[Secrets]) -> Any:
            return getattr(line.channel, kind)(*method, **options)

        known = (self._line, begin(self._line))

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal known
            line = self._current()
            if known[0] is not line:
                known = (line, begin(line))
            made = known[1](*arguments, **named)
            line.calls.add(made)
            made.add_done_callback(lambda ended: self._ended(line, ended))
            return made

        return call

    def _ended(self, line: _Line[Secrets], call: object) -> None:
        line.calls.discard(call)
        self._end_unused(line)

    def _end_unused(self, line: _Line[Secrets]) -> None:
        if line in self._old and not line.calls:
            self._old.remove(line)
            closing = asyncio.ensure_future(line.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
