"""Memory over disk: one place to look parts up, read them, put them, delete them.

Belongs to the event loop; the disk is read by a few threads and changed by one.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from diptych.core.ids import BlockHash, Incarnation
from diptych.core.index_events import IndexLog
from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.disk_reads import READ_S, DiskReads
from diptych.kvcache_store.format import align, extent_head_bytes
from diptych.kvcache_store.items import NOWHERE, Found, Item, Origin, Tier
from diptych.kvcache_store.memory import Held, Lump, MemoryTier
from diptych.kvcache_store.pins import LONGEST_S, Pins
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.retention import Kept, Retention, day_of, later
from diptych.kvcache_store.tenants import Admission, Receipt, Tenants
from diptych.kvcache_store.volume import Volume
from diptych.kvcache_store.write_queue import WriteQueue
from diptych.transport.frames import PartKind

QUEUE_PART = 8  # the write queue is bounded by this part of the memory tier, and
SMALLEST_QUEUE_BYTES = 64 << 20  # by no less than this
SLOTS_PART = 4  # as much as this part of the memory tier is kept of slots, beside it

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Put:
    """What became of parts that were put."""

    granted: Retention
    num_homeless: int  # that no tier had room for
    on_disk: asyncio.Future[bool] | None  # None: they do not go there, or not yet


@dataclass(slots=True)
class TierCounts:
    """Parts since start."""

    read: Counter[Tier] = field(default_factory=Counter)
    missed: int = 0
    put: int = 0
    lapsed_pins: int = 0  # ended by their deadline, not by their owner
    violated_bytes: Counter[Retention] = field(default_factory=Counter)  # with no disk behind


class Tiers:
    """A node's tiers. `run` must be running while anything is put."""

    def __init__(
        self,
        *,
        memory_bytes: int,
        tenants: Tenants,
        incarnation: Incarnation,
        volume: Volume | None = None,
        disk_bytes: int = 0,
        quotas: Quotas = Quotas(),  # noqa: B008 - frozen
        fsync_s: float = 1.0,
        read_s: float = READ_S,
        queue_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tenants = tenants
        self.events = IndexLog(incarnation)
        self.pins = Pins()
        self.counts = TierCounts()
        self.quotas = quotas
        self._started_s = clock()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.memory = MemoryTier(
            memory_bytes,
            on_change=lambda came, names: self.events.publish(came, "memory", names),
            on_evict=self._evicted,
            is_pinned=self.pins.is_pinned,
        )
        self.slots = MemoryTier(memory_bytes // SLOTS_PART)  # worthless once their stream ends
        self.disk: DiskTier | None = None
        self.queue: WriteQueue | None = None
        self._reads: DiskReads | None = None
        if volume is not None:
            self.disk = DiskTier(
                volume,
                disk_bytes,
                clock=clock,
                quotas=quotas,
                key_of=tenants.key_of,
                is_known=tenants.is_known,
                on_change=self._disk_changed,
                is_pinned=self.pins.is_pinned,
            )
            self._reads = DiskReads(self.disk, read_s)
            limit = queue_bytes or max(SMALLEST_QUEUE_BYTES, memory_bytes // QUEUE_PART)
            self.queue = WriteQueue(
                self.disk, limit, fsync_s=fsync_s, is_current=tenants.is_current
            )
        self.was_empty = True

    async def open(self) -> None:
        """Find again what is on disk."""
        if self.disk is not None and self.queue is not None:
            found = await self.queue.call(self.disk.open)
            self.was_empty = not found.parts
            log.info(
                "disk opened segments=%d parts=%d scanned=%d torn_bytes=%d foreign=%d",
                found.segments,
                found.parts,
                found.scanned,
                found.torn_bytes,
                found.foreign,
            )

    async def run(self) -> None:
        """Write what is queued, for ever."""
        if self.queue is not None:
            await self.queue.run()

    def find(self, kind: PartKind, name: BlockHash, origin: Origin) -> Found:
        """The fastest place where a part of this origin lies."""
        held = self._memory_of(kind).find(kind, name, origin)
        if held is not None:
            return Found(Tier.MEMORY, held.item.is_exact)
        if self.disk is None or kind is PartKind.SLOT:
            return NOWHERE
        at = self.disk.segments.find(kind, name, origin)
        return NOWHERE if at is None else Found(Tier.DISK, at[0].is_exact(at[1]))

    @property
    def num_slow(self) -> int:
        """Disk reads that were given up."""
        return 0 if self._reads is None else self._reads.num_slow

    @property
    def queued_bytes(self) -> int:
        """That wait for the disk."""
        return 0 if self.queue is None else self.queue.queued_bytes

    @property
    def age_s(self) -> float:
        """Of this life."""
        return max(0.0, self._clock() - self._started_s)

    def use(self, namespace: bytes) -> None:
        """Somebody works with this namespace."""
        if self.disk is not None:
            self.disk.cleaner.touch(namespace)

    async def read(self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]) -> list[Item]:
        """Parts up to the first that is not at once to be had; maybe fewer: ask for the rest.

        Nothing at all means that the first one is missing. Reading renews.
        """
        held = self._memory_of(kind).prefix(origin, kind, names)
        if held or kind is PartKind.SLOT:
            self._was_read(origin, kind, held)
            return [one.item for one in held]
        admission = self.tenants.current(origin.group)
        items = [] if self._reads is None else await self._reads.read(origin, kind, names)
        if not self.tenants.is_current(admission):
            return []  # deleted while we read
        if items:
            self.counts.read[Tier.DISK] += len(items)
            for held_now in self.memory.put(items, self._kept(items[0]), admission):
                held_now.is_settled = True
        else:
            self.counts.missed += 1
        return items

    def put(
        self,
        items: Sequence[Item],
        retention: Retention,
        admission: Admission,
        *,
        is_complete: bool = True,
    ) -> Put:
        """Take parts: into memory now; to disk soon if the turn is complete, else when they are
        touched again. Dropping is always legal, and counted."""
        if retention is Retention.NONE or not self.tenants.is_current(admission):
            return Put(Retention.NONE, len(items), None)
        if items and items[0].kind is PartKind.SLOT:
            kept = Kept(retention, day_of(self._clock()))
            held = self.slots.put(items, kept, admission)
            return Put(retention, len(items) - len(held), None)
        retention = self._granted(retention, _disk_bytes(items))
        self.counts.put += len(items)
        again = {i.name for i in items if self.memory.find(i.kind, i.name, i.origin)}
        kept = Kept(retention, day_of(self._clock()))
        held = self.memory.put(items, kept, admission)
        on_disk: asyncio.Future[bool] | None = None
        if self.queue is not None:
            due = [one for one in held if is_complete or one.item.name in again]
            homeless = self._without(items, held, kept) if is_complete else ()
            on_disk = self._settle(due, kept, homeless)
        num_homeless = 0 if on_disk is not None else len(items) - len(held)
        return Put(retention, num_homeless, on_disk)

    async def until_room(self, size_bytes: int) -> None:
        """For those who would rather wait than have parts dropped on their way to disk."""
        if self.queue is not None:
            await self.queue.until_room(size_bytes)

    def pin(self, names: Sequence[BlockHash], owner: str, reason: str, lease_s: float) -> int:
        """Keep blocks where they are for a moment; the pin's id, 0 for none."""
        pin_id = self.pins.hold(names, owner, reason, self._loop.time(), lease_s)
        if pin_id:
            self._loop.call_later(min(lease_s, LONGEST_S), self._lapse, pin_id)
        return pin_id

    def renew(self, origin: Origin, kind: PartKind, name: BlockHash, retention: Retention) -> None:
        """Somebody has computed again what is here: as good as reading it."""
        if kind is PartKind.SLOT:
            return  # it is of use for minutes, not for days
        held = self.memory.find(kind, name, origin)
        at = None if self.disk is None else self.disk.segments.find(kind, name, origin)
        if at is not None:
            retention = self._granted(retention, at[0].live_bytes)
        kept = Kept(retention, day_of(self._clock()))
        if held is not None:
            held.kept = later(held.kept, kept)
            self._settle([held], held.kept)
        elif self.disk is not None and at is not None:
            self.disk.segments.renew(at[0], kept)

    async def delete(self, tenant: str, node: str) -> Receipt:
        """Destroy a tenant's key, then everything of it in every tier."""
        group = self.tenants.group_of(tenant)
        had_key = self.tenants.forget(tenant)
        memory_bytes = self.memory.drop(self.memory.of_group(group))
        memory_bytes += self.slots.drop(self.slots.of_group(group))
        segments = parts = disk_bytes = 0
        if self.disk is not None and self.queue is not None:
            disk = self.disk
            segments, parts, disk_bytes = await self.queue.call(lambda: disk.delete(group))
        receipt = Receipt(
            receipt_id=BlockHash(group[:4]).hex() + f"-{int(self._clock()):x}",
            tenant=tenant,
            node=node,
            deleted_s=int(self._clock()),
            key_destroyed=had_key,
            segments=segments,
            parts=parts,
            disk_bytes=disk_bytes,
            memory_bytes=memory_bytes,
        )
        log.info("tenant deleted segments=%d parts=%d bytes=%d", segments, parts, disk_bytes)
        return self.tenants.file_receipt(receipt)

    async def flush(self) -> None:
        """Until all that is queued lies on disk; needs `run`."""
        if self.queue is not None:
            await self.queue.flush()

    async def close(self) -> None:
        """Seal all segments and end the threads; after `run` has ended."""
        if self.disk is not None and self.queue is not None:
            await self.queue.call(self.disk.close)
            await self.queue.close()
        if self._reads is not None:
            await self._reads.close()

    def _memory_of(self, kind: PartKind) -> MemoryTier:
        return self.slots if kind is PartKind.SLOT else self.memory

    def _granted(self, retention: Retention, size_bytes: int) -> Retention:
        if self.disk is None:
            return retention
        return self.quotas.granted(self.disk.segments.ledger, retention, size_bytes)

    def _was_read(self, origin: Origin, kind: PartKind, held: Sequence[Held]) -> None:
        """Renew what was read from memory, on disk too; a second touch settles."""
        self.counts.read[Tier.MEMORY] += len(held)
        today = day_of(self._clock())
        for one in held:
            one.kept = later(one.kept, Kept(one.kept.retention, today))
        if self.disk is not None and kind is not PartKind.SLOT:
            self.disk.renew(origin, kind, [one.item.name for one in held])
            self._settle([one for one in held if not one.is_settled], held[0].kept)

    def _without(self, items: Sequence[Item], held: Sequence[Held], kept: Kept) -> list[Held]:
        """Copies of what memory has no room for, on their way to disk alone."""
        names = {(one.item.kind, one.item.name) for one in held}
        return [
            Held(
                replace(item, payload=memoryview(bytes(item.payload))),
                kept,
                self.tenants.current(item.origin.group),
                Lump(len(item.payload)),
            )
            for item in items
            if (item.kind, item.name) not in names
        ]

    def _settle(
        self, held: Sequence[Held], kept: Kept, homeless: Sequence[Held] = ()
    ) -> "asyncio.Future[bool] | None":
        """Queue for disk what is neither there nor on its way; prolong what is there."""
        if self.disk is None or self.queue is None:
            return None
        fresh: list[Held] = []
        for one in (*held, *homeless):
            at = self.disk.segments.find(one.item.kind, one.item.name, one.item.origin)
            if at is not None:
                one.is_settled = True
                self.disk.segments.renew(at[0], kept)
            elif not one.is_settled:
                fresh.append(one)
        if not fresh:
            return None
        items = tuple(one.item for one in fresh)
        on_disk = self.queue.offer(items, kept.retention, fresh[0].admission)
        for one in fresh:
            one.is_settled = True
        on_disk.add_done_callback(lambda done: _unsettle(done, fresh))
        return on_disk

    def _lapse(self, pin_id: int) -> None:
        if self.pins.release(pin_id):
            self.counts.lapsed_pins += 1

    def _kept(self, item: Item) -> Kept:
        assert self.disk is not None
        at = self.disk.segments.find(item.kind, item.name, item.origin)
        return at[0].kept if at is not None else Kept(Retention.AGENT, day_of(self._clock()))

    def _evicted(self, held: Held) -> None:
        """A part leaves memory. Without a disk behind it that breaks its promise."""
        if self.disk is None and not held.kept.is_over(self._clock()):
            self.counts.violated_bytes[held.kept.retention] += len(held.item.payload)

    def _disk_changed(self, came: bool, names: Sequence[BlockHash]) -> None:
        """From whatever thread: tell the loop, in order."""
        self._loop.call_soon_threadsafe(self.events.publish, came, "disk", names)


def _unsettle(done: "asyncio.Future[bool]", held: Sequence[Held]) -> None:
    """What was dropped on its way to disk may try again when it is touched."""
    if done.cancelled() or not done.result():
        for one in held:
            one.is_settled = False


def _disk_bytes(items: Sequence[Item]) -> int:
    """What parts take on disk, side by side."""
    payload_bytes = sum(len(item.payload) for item in items)
    return align(extent_head_bytes(len(items)) + payload_bytes)
