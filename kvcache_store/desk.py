"""The operator's desk of one node, in its own process."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from diptych.core.errors import NotFound
from diptych.kvcache_store.caretaker import Caretaker
from diptych.kvcache_store.items import Tier
from diptych.kvcache_store.report import (
    Account,
    Collected,
    PinRow,
    SegmentRow,
    Stats,
    Verified,
)
from diptych.kvcache_store.retention import day_of
from diptych.kvcache_store.segment import Segment
from diptych.kvcache_store.tiers import Tiers


class Desk:
    """Answers with what is known here; see report.Operator."""

    def __init__(
        self, node: str, tiers: Tiers, caretaker: Caretaker, clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._tiers = tiers
        self._caretaker = caretaker
        self._clock = clock

    async def stats(self) -> Stats:
        tiers = self._tiers
        now_s = asyncio.get_running_loop().time()
        disk = tiers.disk
        pins = [
            PinRow(pin.owner, pin.reason, len(pin.names), pin.until_s - now_s, pin.is_leaked(now_s))
            for pin in tiers.pins.all()
        ]
        return Stats(
            node=self._node,
            accounts=tuple(self._accounts()),
            disk=None if disk is None else disk.balance,
            memory_bytes=tiers.memory.used_bytes,
            memory_capacity=tiers.memory.capacity_bytes,
            memory_parts=len(tiers.memory),
            disk_parts=0 if disk is None else disk.segments.num_parts,
            queued_bytes=tiers.queued_bytes,
            counters=counters(tiers),
            pins=tuple(pins),
        )

    async def segments(self) -> list[SegmentRow]:
        disk = self._tiers.disk
        rows = [] if disk is None else [self._row(segment) for segment in disk.segments.all()]
        return sorted(rows, key=lambda row: (row.tenant, row.retention, row.day, row.name))

    async def verify(self) -> Verified:
        before = self._corrupt()
        read_bytes = await self._caretaker.scrub(hurry=True)
        return Verified(read_bytes, self._corrupt() - before)

    async def collect(self, *, foreign: bool) -> Collected:
        swept = await self._caretaker.sweep(foreign=foreign, hurry=True)
        return Collected(swept.moved_bytes, swept.freed_bytes)

    async def remove(self, tenant: str) -> str:
        if not self._tiers.tenants.is_known(self._tiers.tenants.group_of(tenant)):
            raise NotFound("tenant: this store holds nothing of such a one", param="tenant")
        return json.dumps(asdict(await self._tiers.delete(tenant, self._node)))

    def _accounts(self) -> list[Account]:
        disk = self._tiers.disk
        if disk is None:
            return []
        today = day_of(self._clock())
        with disk.segments.lock:
            rows = list(disk.segments.ledger.rows())
        sizes: Counter[tuple[str, str, int]] = Counter()
        for group, kept, size in rows:
            tenant = self._tiers.tenants.name_of(group)
            sizes[tenant, str(kept.retention), max(0, today - kept.day)] += size
        return [Account(*key, size) for key, size in sorted(sizes.items())]

    def _row(self, segment: Segment) -> SegmentRow:
        head = segment.head
        return SegmentRow(
            name=segment.name,
            tenant=self._tiers.tenants.name_of(head.group),
            retention=head.kept.retention,
            day=head.kept.day,
            namespace=head.namespace,
            parts=sum(extent.num_live for extent in segment.extents),
            live_bytes=segment.live_bytes,
            size_bytes=segment.size_bytes,
            is_growing=segment.appender is not None,
            is_encrypted=head.is_encrypted,
        )

    def _corrupt(self) -> int:
        return 0 if self._tiers.disk is None else self._tiers.disk.reader.counts.corrupt


def counters(tiers: Tiers) -> dict[str, int]:
    """What has happened since start, by name."""
    counts = tiers.counts
    found = {
        "parts_put": counts.put,
        "parts_read_memory": counts.read[Tier.MEMORY],
        "parts_read_disk": counts.read[Tier.DISK],
        "reads_missed": counts.missed,
        "reads_slow": tiers.num_slow,
        "pins_lapsed": counts.lapsed_pins,
        "violated_bytes": counts.violated_bytes.total(),
    }
    if tiers.disk is not None and tiers.queue is not None:
        cleanings, writes = tiers.disk.cleaner.counts, tiers.queue.counts
        found |= {
            "parts_written": writes.written,
            "parts_dropped_full": writes.dropped_full,
            "parts_dropped_room": writes.dropped_room,
            "parts_dropped_error": writes.dropped_error,
            "parts_dropped_deleted": writes.dropped_deleted,
            "parts_corrupt": tiers.disk.reader.counts.corrupt,
            "moved_bytes": cleanings.moved_bytes,
            "expired_bytes": cleanings.expired_bytes,
            "evicted_bytes": cleanings.evicted_bytes.total(),
            "scrubbed_bytes": cleanings.scrubbed_bytes,
        }
        found["violated_bytes"] += cleanings.violated_bytes.total()
    return found
