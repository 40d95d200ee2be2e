"""What a store does unasked: expiry, compaction, scrubbing; at a pace that leaves the disk free."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diptych.kvcache_store.tiers import Tiers
from diptych.kvcache_store.volume import VolumeFull

SWEEP_EVERY_S = 60.0
SCRUB_EVERY_S = 7 * 86_400.0
FIRST_SCRUB_S = 3_600.0  # after start
BYTES_A_SECOND = 50 << 20  # of moving and scrubbing: about a tenth of a plain disk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep gave back or read."""

    moved_bytes: int
    freed_bytes: int


class Caretaker:
    """Sweeps and scrubs."""

    def __init__(
        self,
        tiers: Tiers,
        *,
        clock: Callable[[], float],
        bytes_a_second: float = BYTES_A_SECOND,
    ) -> None:
        self._tiers = tiers
        self._clock = clock
        self._bytes_a_second = bytes_a_second
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        scrub_at_s = loop.time() + FIRST_SCRUB_S
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweep()
            if loop.time() >= scrub_at_s:
                await self.scrub()
                scrub_at_s = loop.time() + SCRUB_EVERY_S

    async def sweep(self, *, foreign: bool = False, hurry: bool = False) -> Swept:
        """Expire and compact; with `foreign`, drop what belongs to unused namespaces as well."""
        self._tiers.memory.expire(self._clock())
        self._tiers.slots.expire(self._clock())
        disk, queue = self._tiers.disk, self._tiers.queue
        if disk is None or queue is None:
            return Swept(0, 0)
        async with self._turn:
            before = disk.segments.file_bytes
            if foreign:
                await queue.call(disk.cleaner.collect_foreign)
            moved = await self._walk(disk.clean(), hurry)
            return Swept(moved, max(0, before - disk.segments.file_bytes))

    async def scrub(self, *, hurry: bool = False) -> int:
        """Read everything once; bytes read."""
        if self._tiers.disk is None:
            return 0
        async with self._turn:
            return await self._walk(self._tiers.disk.scrub(), hurry)

    async def _walk(self, steps: Iterator[int], hurry: bool) -> int:
        """Take the steps on the writer's thread, resting in proportion to their bytes."""
        assert self._tiers.queue is not None
        total = 0
        while True:
            try:
                moved = await self._tiers.queue.call(lambda: next(steps, None))
            except (VolumeFull, OSError) as error:  # the next sweep tries again
                log.error("cleaning stopped why=%s", error)
                return total
            if moved is None:
                return total
            total += moved
            if moved and not hurry:
                await asyncio.sleep(moved / self._bytes_a_second)
