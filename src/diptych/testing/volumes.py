"""Volumes that misbehave: too small, too slow."""

import threading
import time
from collections.abc import Sequence

from diptych.kvcache_store.volume import Appender, Volume, VolumeFull


class PoorVolume:
    """Another volume with less room, and only so many bytes a second; both may change."""

    def __init__(
        self, inner: Volume, *, room_bytes: int | None = None, bytes_a_second: float | None = None
    ) -> None:
        self.room_bytes = room_bytes
        self.bytes_a_second = bytes_a_second
        self._inner = inner
        self._turn = threading.Lock()

    def names(self) -> list[str]:
        return self._inner.names()

    def size(self, name: str) -> int:
        return self._inner.size(name)

    def create(self, name: str) -> Appender:
        return _PoorFile(self, self._inner.create(name))

    def extend(self, name: str) -> Appender:
        return _PoorFile(self, self._inner.extend(name))

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        self.crawl(size_bytes)
        return self._inner.read(name, offset, size_bytes)

    def truncate(self, name: str, size_bytes: int) -> None:
        self._inner.truncate(name, size_bytes)

    def remove(self, name: str) -> None:
        self._inner.remove(name)

    def sync(self) -> None:
        self._inner.sync()

    def crawl(self, size_bytes: int) -> None:
        """Take as long as so many bytes do; one at a time, as a disk does."""
        if self.bytes_a_second is not None:
            with self._turn:
                time.sleep(size_bytes / self.bytes_a_second)

    def left_bytes(self) -> int | None:
        if self.room_bytes is None:
            return None
        return self.room_bytes - sum(self.size(name) for name in self.names())


class _PoorFile:
    """Writes what there is room for, like a real full disk, and then fails."""

    def __init__(self, volume: PoorVolume, inner: Appender) -> None:
        self._volume = volume
        self._inner = inner

    def append(self, chunks: Sequence[bytes | memoryview]) -> None:
        data = b"".join(chunks)
        self._volume.crawl(len(data))
        left = self._volume.left_bytes()
        if left is not None and len(data) > left:
            self._inner.append([data[: max(0, left)]])
            raise VolumeFull("no room in a test")
        self._inner.append([data])

    def sync(self) -> None:
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()
