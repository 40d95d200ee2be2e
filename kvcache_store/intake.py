"""One put: what is wanted of it, taking that, and what became of it."""

import asyncio
from collections.abc import Sequence

from diptych.kvcache_store.arrivals import Arrivals, Expected
from diptych.kvcache_store.items import Item, Origin, Tier
from diptych.kvcache_store.messages import Announcement, Stored
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.tiers import Tiers
from diptych.transport.channel import deadline

ON_DISK_S = 30.0  # how long a put may wait for the disk


class Intake:
    """Takes the parts of one announcement, however they come."""

    def __init__(self, tiers: Tiers, announced: Announcement, origin: Origin) -> None:
        self._tiers = tiers
        self._announced = announced
        self._retention = announced.retention
        is_stored = announced.retention is not Retention.NONE
        self._admission = tiers.tenants.admit(announced.whose.tenant) if is_stored else None
        wanted = self._wanted(origin) if is_stored else []
        self.arrivals = Arrivals(origin, wanted)
        self._taken = self._homeless = 0
        self._on_disk: list[tuple[int, asyncio.Future[bool]]] = []

    async def store(self, items: Sequence[Item]) -> None:
        """Into the tiers; who awaits the disk waits for room on the way to it."""
        assert self._admission is not None
        if self._announced.await_disk:
            async with deadline(ON_DISK_S, "the disk", code="disk_slow"):
                await self._tiers.until_room(sum(len(item.payload) for item in items))
        put = self._tiers.put(
            items,
            self._announced.retention,
            self._admission,
            is_complete=self._announced.is_complete,
        )
        self._retention = put.granted
        self._taken += len(items)
        self._homeless += put.num_homeless
        if self._announced.await_disk and put.on_disk is not None:
            self._on_disk.append((len(items), put.on_disk))

    async def outcome(self) -> Stored:
        """When all has come."""
        if self._on_disk:
            await asyncio.wait([done for _, done in self._on_disk], timeout=ON_DISK_S)
        on_disk = sum(n for n, done in self._on_disk if done.done() and done.result())
        dropped = sum(n for n, _ in self._on_disk) - on_disk
        return Stored(self._retention, self._taken, on_disk, dropped + self._homeless)

    def _wanted(self, origin: Origin) -> list[Expected]:
        """What is not here yet. What is, was used again: its promise is prolonged."""
        wanted: list[Expected] = []
        for one in self._announced.expected:
            if self._tiers.find(one.kind, one.name, origin).tier is Tier.NOWHERE:
                wanted.append(one)
            else:
                self._tiers.renew(origin, one.kind, one.name, self._announced.retention)
        return wanted
