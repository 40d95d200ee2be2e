"""The disk tier: writes into segments, reads back what it can vouch for, stays in its capacity.

`write`, `clean`, `scrub`, `delete` and `sync` belong to one thread; the rest may come from any.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from diptych.core.ids import BlockHash
from diptych.kvcache_store import format as f
from diptych.kvcache_store.cleaner import Cleaner
from diptych.kvcache_store.items import Item, Origin, runs
from diptych.kvcache_store.ledger import Balance
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.reading import Reader
from diptych.kvcache_store.retention import Kept, Retention, day_of
from diptych.kvcache_store.segments import CipherOf, OnChange, Recovered, Segments
from diptych.kvcache_store.volume import Volume, VolumeFull
from diptych.transport.frames import PartKind

LARGEST_SEGMENT_BYTES = 256 << 20
SMALLEST_SEGMENT_BYTES = 64 << 10
SEGMENTS = 32  # at least that many in the capacity, so that giving one back costs little
EVICTIONS = 32  # the capacity's part that goes at once, so that making room is rare


def segment_size(capacity_bytes: int) -> int:
    """Bytes of a full segment."""
    wanted = min(LARGEST_SEGMENT_BYTES, capacity_bytes // SEGMENTS)
    return max(SMALLEST_SEGMENT_BYTES, wanted)


class DiskTier:
    """Parts on a volume, up to a capacity."""

    def __init__(
        self,
        volume: Volume,
        capacity_bytes: int,
        *,
        clock: Callable[[], float],
        quotas: Quotas = Quotas(),  # noqa: B008 - frozen
        key_of: CipherOf = lambda group: None,
        is_known: Callable[[bytes], bool] = lambda group: True,
        on_change: OnChange = lambda came, names: None,
        is_pinned: Callable[[Sequence[BlockHash]], bool] = lambda names: False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.queued_bytes = 0  # of writes on their way; the queue's to say
        self.written_bytes: Counter[Retention] = Counter()
        self._clock = clock
        self._segment_bytes = segment_size(capacity_bytes)
        self.segments = Segments(
            volume,
            segment_bytes=self._segment_bytes,
            clock=clock,
            key_of=key_of,
            is_known=is_known,
            on_change=on_change,
        )
        self.reader = Reader(self.segments)
        self.cleaner = Cleaner(
            self.segments, self.reader, quotas=quotas, clock=clock, is_pinned=is_pinned
        )

    def open(self) -> Recovered:
        """Find again what is there, and drop what is over or too much."""
        recovered = self.segments.open()
        self.cleaner.start()
        for _ in self.cleaner.clean():
            pass
        self._make_room(0)
        return recovered

    @property
    def balance(self) -> Balance:
        """Where the capacity is."""
        with self.segments.lock:
            live, used = self.segments.ledger.total, self.segments.file_bytes
            kept = sum(e.live_bytes for e in self.segments.extents() if self.cleaner.is_kept(e))
            return Balance(
                capacity=self.capacity_bytes,
                live=live - kept,
                dead=used - live,
                pinned=kept,
                reserved=self.queued_bytes + self._own_bytes,
            )

    @property
    def free_bytes(self) -> int:
        """The balance's, in constant time."""
        taken = self.segments.file_bytes + self.queued_bytes + self._own_bytes
        return self.capacity_bytes - taken

    @property
    def _own_bytes(self) -> int:
        """What is left of one segment's room to move into, and the footers to come."""
        room = max(0, self._segment_bytes - self.segments.moved_bytes)
        return room + self.segments.footer_bytes

    def find(self, kind: PartKind, name: BlockHash, origin: Origin) -> bool:
        """Whether a part is there; asking renews nothing."""
        return self.segments.find(kind, name, origin) is not None

    def write(self, items: Sequence[Item], retention: Retention) -> None:
        """Append what is not there yet; renew what is.

        VolumeFull when not even evicting gives enough room.
        """
        kept = Kept(retention, day_of(self._clock()))
        fresh: dict[tuple[PartKind, BlockHash], Item] = {}
        for item in items:
            self.cleaner.touch(item.origin.namespace)
            found = self.segments.find(item.kind, item.name, item.origin)
            if found is None:
                fresh[item.kind, item.name] = item
            else:
                self.segments.renew(found[0], kept)
        for run in runs(list(fresh.values())):
            size = sum(len(item.payload) for item in run)
            needed = f.most_bytes(len(run), size)
            if not self._make_room(needed):
                raise VolumeFull(f"no room for {size} bytes within {self.capacity_bytes}")
            self.segments.append(run, kept)
            self.written_bytes[retention] += size

    def read(self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]) -> list[Item]:
        """The parts up to the first that is missing, damaged, or another's. Renews them."""
        self.cleaner.touch(origin.namespace)
        items, extents = self.reader.read(origin, kind, names)
        now_s = self._clock()
        for extent in extents:
            extent.reads += 1
            extent.used_s = now_s
            self.segments.renew(extent, Kept(extent.kept.retention, day_of(now_s)))
        return items

    def renew(self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]) -> None:
        """Parts were read from elsewhere: what is owed for them here lasts as long."""
        today = day_of(self._clock())
        for name in names:
            found = self.segments.find(kind, name, origin)
            if found is not None and found[0].kept.day < today:
                self.segments.renew(found[0], Kept(found[0].kept.retention, today))

    def clean(self) -> Iterator[int]:
        """See Cleaner.clean."""
        return self.cleaner.clean()

    def scrub(self) -> Iterator[int]:
        """See Cleaner.scrub."""
        return self.cleaner.scrub()

    def delete(self, group: bytes) -> tuple[int, int, int]:
        """Everything of a tenant: (segments, parts, bytes)."""
        segments = parts = size = 0
        for segment in self.segments.all():
            if segment.head.group == group:
                parts += sum(extent.num_live for extent in segment.extents)
                size += self.segments.drop(segment)
                segments += 1
        self.segments.volume.sync()
        return segments, parts, size

    def sync(self) -> None:
        """What was written so far survives a power cut."""
        self.segments.sync()

    def close(self) -> None:
        self.segments.close()

    def _make_room(self, needed: int) -> bool:
        if needed > self.capacity_bytes - self._own_bytes:
            return False
        return self.cleaner.make_room(
            lambda: needed - self.free_bytes, self.capacity_bytes // EVICTIONS
        )
