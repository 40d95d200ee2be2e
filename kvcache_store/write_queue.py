"""Write-behind: parts wait here for the disk, up to a bound; the newest are dropped beyond it.

One thread does all that changes the disk. What is queued is acknowledged when it lies in its file.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.tenants import Admission
from diptych.kvcache_store.volume import VolumeFull

Result = TypeVar("Result")

AT_ONCE_BYTES = 4 << 20  # what one visit of the thread writes

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Write:
    """Parts on their way to disk, and who waits for them: True is written, False dropped."""

    items: tuple[Item, ...]
    retention: Retention
    admission: Admission
    done: asyncio.Future[bool]

    @property
    def size_bytes(self) -> int:
        return sum(len(item.payload) for item in self.items)


@dataclass(slots=True)
class WriteCounts:
    """Parts since start."""

    written: int = 0
    dropped_full: int = 0  # the queue was: the disk is slower than what comes
    dropped_room: int = 0  # the volume was
    dropped_error: int = 0
    dropped_deleted: int = 0  # their tenant was


class WriteQueue:
    """The queue and its thread."""

    def __init__(
        self,
        disk: DiskTier,
        limit_bytes: int,
        *,
        fsync_s: float,
        is_current: Callable[[Admission], bool] = lambda admission: True,
    ) -> None:
        self.counts = WriteCounts()
        self.queued_bytes = 0
        self._disk = disk
        self._limit_bytes = limit_bytes
        self._fsync_s = fsync_s
        self._is_current = is_current
        self._queue: deque[Write] = deque()
        self._is_full = False  # the last write found no room
        self._work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._thread = ThreadPoolExecutor(1, "store-writer")

    def offer(
        self, items: tuple[Item, ...], retention: Retention, admission: Admission
    ) -> asyncio.Future[bool]:
        """Queue parts, or drop them at once."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        write = Write(items, retention, admission, done)
        if self.queued_bytes + write.size_bytes > self._limit_bytes:
            self.counts.dropped_full += len(items)
            done.set_result(False)
            return done
        self._queue.append(write)
        self.queued_bytes += write.size_bytes
        self._disk.queued_bytes = self.queued_bytes
        self._is_idle.clear()
        self._work.set()
        return done

    async def run(self) -> None:
        """Write what comes, for ever; sync within `fsync_s` of the first unsynced write."""
        loop = asyncio.get_running_loop()
        sync_at_s: float | None = None
        while True:
            wait_s = None if sync_at_s is None else max(0.0, sync_at_s - loop.time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._work.wait()
            except TimeoutError:
                pass
            if batch := self._take():
                await self._write(batch)
                if sync_at_s is None:
                    sync_at_s = loop.time() + self._fsync_s
            if sync_at_s is not None and loop.time() >= sync_at_s:
                sync_at_s = None
                await self._sync()

    async def until_room(self, size_bytes: int) -> None:
        """Until so many bytes, or as many as ever can, would not be dropped."""
        while self._queue and self.queued_bytes + size_bytes > self._limit_bytes:
            self._has_room.clear()
            await self._has_room.wait()

    async def call(self, work: Callable[[], Result]) -> Result:
        """Do something on the thread, between two writes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def flush(self) -> None:
        """Until everything that is queued now is written or dropped, and safe."""
        await self._is_idle.wait()
        await self._sync()

    async def close(self) -> None:
        """End the thread; what is still queued is dropped."""
        for write in self._queue:
            self._settle(write, is_written=False)
        self._queue.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def _take(self) -> list[Write]:
        """The next writes of one class, whose tenants still exist."""
        batch: list[Write] = []
        size = 0
        while self._queue and size < AT_ONCE_BYTES:
            write = self._queue[0]
            if batch and write.retention is not batch[0].retention:
                break
            self._queue.popleft()
            self.queued_bytes -= write.size_bytes
            if self._is_current(write.admission):
                batch.append(write)
                size += write.size_bytes
            else:
                self.counts.dropped_deleted += len(write.items)
                self._settle(write, is_written=False)
        self._disk.queued_bytes = self.queued_bytes
        self._has_room.set()
        if not self._queue:
            self._work.clear()
            if not batch:
                self._is_idle.set()
        return batch

    async def _write(self, batch: list[Write]) -> None:
        items = [item for write in batch for item in write.items]
        is_written = False
        try:
            await self.call(lambda: self._disk.write(items, batch[0].retention))
            is_written = True
            self.counts.written += len(items)
            self._is_full = False
        except VolumeFull as error:
            self.counts.dropped_room += len(items)
            if not self._is_full:  # said once, counted always
                log.warning("parts are dropped until there is room why=%s", error.message)
            self._is_full = True
        except OSError as error:
            self.counts.dropped_error += len(items)
            log.error("parts dropped parts=%d why=%s", len(items), error.strerror)
        for write in batch:
            self._settle(write, is_written=is_written)
        if not self._queue:
            self._is_idle.set()

    async def _sync(self) -> None:
        try:
            await self.call(self._disk.sync)
        except OSError as error:
            log.error("sync failed why=%s", error.strerror)

    def _settle(self, write: Write, *, is_written: bool) -> None:
        if not write.done.done():
            write.done.set_result(is_written)
