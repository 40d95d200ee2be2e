"""Bodies that are being received, of all clients together: how many bytes there may be."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from diptych.core.errors import Overloaded

MAX_BYTES = 1 << 30

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Uploads:
    """Counts them."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.size_bytes = 0

    @contextmanager
    def one(self) -> "Iterator[Upload]":
        """Receive and parse a body inside."""
        upload = Upload(self)
        try:
            yield upload
        finally:
            self.size_bytes -= upload.size_bytes

    def take(self, size_bytes: int) -> None:
        """Overloaded if that is more than there is room for."""
        if self.size_bytes + size_bytes > self._max_bytes:
            raise Overloaded("too many long requests are being read now", retry_after_s=1)
        self.size_bytes += size_bytes


class Upload:
    """One of them."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self.size_bytes = 0

    def through(self, receive: Receive) -> Receive:
        """The same messages, their bytes counted."""

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            size_bytes = len(message.get("body", b""))
            self._uploads.take(size_bytes)
            self.size_bytes += size_bytes
            return message

        return counted
