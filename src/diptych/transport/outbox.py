"""What waits to be written to a stream: first in, first out, bounded in bytes."""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A protobuf message, as far as an outbox cares."""

    def ByteSize(self) -> int: ...


Message = TypeVar("Message", bound=Sized)


class Outbox(Generic[Message]):
    """One writer takes; anyone puts, without waiting. Past the bound, `overflowed` is set."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Message, int]] = deque()
        self._filled = asyncio.Event()
        self.size_bytes = 0
        self.overflowed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Queue a message; dropped once the outbox has overflowed, for its stream is to be cut."""
        if self.overflowed.is_set():
            return
        size = message.ByteSize()
        self.size_bytes += size
        self._waiting.append((message, size))
        self._filled.set()
        if self.size_bytes > self._limit_bytes:
            self.overflowed.set()

    async def get(self) -> Message:
        """The next message, waiting for one; loses nothing when cancelled."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        message, size = self._waiting.popleft()
        self.size_bytes -= size
        return message
