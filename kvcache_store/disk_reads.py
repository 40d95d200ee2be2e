"""Reads of the disk tier on threads of their own: within a deadline, or misses."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from diptych.core.ids import BlockHash
from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item, Origin
from diptych.transport.frames import PartKind

THREADS = 4
AT_ONCE = 32  # more are misses: the disk does not keep up
READ_S = 2.0  # what takes longer is a miss

log = logging.getLogger(__name__)


class DiskReads:
    """Belongs to the event loop."""

    def __init__(self, disk: DiskTier, read_s: float = READ_S) -> None:
        self.num_slow = 0
        self._disk = disk
        self._read_s = read_s
        self._num_running = 0
        self._threads = ThreadPoolExecutor(THREADS, "store-reader")

    async def read(self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]) -> list[Item]:
        """See DiskTier.read; nothing when the disk is slow or fails."""
        if self._disk.segments.find(kind, names[0], origin) is None:
            return []
        if self._num_running >= AT_ONCE:
            self.num_slow += 1
            return []
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._threads, self._disk.read, origin, kind, names)
        self._num_running += 1
        reading.add_done_callback(self._has_read)
        done, _ = await asyncio.wait([reading], timeout=self._read_s)
        if not done:
            self.num_slow += 1
            log.warning("a disk read took longer than %g s and counts as a miss", self._read_s)
            return []
        return [] if reading.exception() is not None else reading.result()

    async def close(self) -> None:
        """End the threads."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _has_read(self, reading: "asyncio.Future[list[Item]]") -> None:
        self._num_running -= 1
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("a disk read failed why=%s", error)
