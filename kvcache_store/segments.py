"""All segments of a volume, and where each part lies in them.

Appends come from one thread; everything else may come from any. The lock guards what is known,
never a read or a write of the volume.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from diptych.core.ids import BlockHash
from diptych.kvcache_store import format as f
from diptych.kvcache_store.cipher import SegmentCipher
from diptych.kvcache_store.items import Item, Origin
from diptych.kvcache_store.ledger import Ledger
from diptych.kvcache_store.renewals import Renewals
from diptych.kvcache_store.retention import Kept, later
from diptych.kvcache_store.segment import SUFFIX, Extent, Segment, open_segment
from diptych.kvcache_store.volume import Appender, Volume, VolumeFull
from diptych.transport.frames import PartKind

log = logging.getLogger(__name__)

MAX_OPEN: Final = 64  # segments that grow at a time; the longest unused is sealed for another

_Stream = tuple[Kept, bytes, bytes, bytes]  # what a segment is for
CipherOf = Callable[[bytes], bytes | None]  # a group's key; None: its segments are plain
OnChange = Callable[[bool, Sequence[BlockHash]], None]  # blocks that came (True) or went
_KINDS: Final = (PartKind.BLOCK, PartKind.ANCHOR)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found at start."""

    segments: int = 0
    parts: int = 0
    scanned: int = 0  # segments without a footer: the last life ended abruptly
    torn_bytes: int = 0
    foreign: int = 0  # files that were no segments of ours, or of a tenant that is gone; removed


class Segments:
    """The files and the index over them."""

    def __init__(
        self,
        volume: Volume,
        *,
        segment_bytes: int,
        clock: Callable[[], float],
        key_of: CipherOf = lambda group: None,
        is_known: Callable[[bytes], bool] = lambda group: True,
        on_change: OnChange = lambda came, names: None,
    ) -> None:
        self.lock = threading.RLock()
        self.ledger = Ledger()
        self.segments: dict[int, Segment] = {}
        self.volume = volume
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._key_of = key_of
        self._is_known = is_known
        self._on_change = on_change
        self._index: dict[PartKind, dict[BlockHash, Extent]] = {kind: {} for kind in _KINDS}
        self._open: dict[_Stream, Segment] = {}
        self._unsynced: set[Segment] = set()  # that grow
        self._sealed: list[Appender] = []  # not synced since, not closed
        self._has_new_files = False
        self._renewals = Renewals(volume)

    @property
    def file_bytes(self) -> int:
        """What all files take."""
        sizes = sum(segment.size_bytes for segment in self.all())
        return sizes + self._renewals.size_bytes

    @property
    def footer_bytes(self) -> int:
        """What sealing the segments that grow will add."""
        return sum(segment.footer_bytes for segment in list(self._open.values()))

    @property
    def moved_bytes(self) -> int:
        """What lies twice for the moment, because segments are being moved."""
        return sum(segment.moved_bytes for segment in self.all())

    @property
    def num_parts(self) -> int:
        return sum(map(len, self._index.values()))

    def blocks(self) -> list[BlockHash]:
        with self.lock:
            return list(self._index[PartKind.BLOCK])

    def open(self) -> Recovered:
        """Read every segment's index; where a part lies twice, the newer segment counts."""
        opened, foreign = [], 0
        for name in self.volume.names():
            if not name.endswith(SUFFIX):
                continue
            one = open_segment(self.volume, name)
            if one is None or not self._is_readable(one.segment.head):
                self.volume.remove(name)
                foreign += 1
            else:
                opened.append(one)
        promises = self._renewals.load()
        for one in sorted(opened, key=lambda o: (o.segment.head.created_s, o.segment.name)):
            self._adopt(one.segment, promises)
        still = [
            ((extent.segment.head.segment_id, extent.offset), extent.kept)
            for extent in self.extents()
            if extent.kept != extent.segment.head.kept
        ]
        self._renewals.begin(still)
        return Recovered(
            segments=len(opened),
            parts=self.num_parts,
            scanned=sum(one.was_scanned for one in opened),
            torn_bytes=sum(one.torn_bytes for one in opened),
            foreign=foreign,
        )

    def all(self) -> list[Segment]:
        with self.lock:
            return list(self.segments.values())

    def extents(self) -> list[Extent]:
        """Those with a live part."""
        with self.lock:
            return [e for s in self.segments.values() for e in s.extents if e.num_live]

    def find(self, kind: PartKind, name: BlockHash, origin: Origin) -> tuple[Extent, int] | None:
        """Where a part of this origin lies. Another tenant's or layout's is not there."""
        extent = self._index[kind].get(name)
        if extent is None or extent.scope != origin.scope:
            return None
        head = extent.segment.head
        whose = (head.namespace, head.layout_hash, head.group)
        if whose != (origin.namespace, origin.layout_hash, origin.group):
            return None
        return extent, extent.names.index(name)

    def append(self, run: tuple[Item, ...], kept: Kept) -> Extent:
        """Write parts that follow each other; VolumeFull leaves nothing of them."""
        segment = self._segment_for(run[0].origin, kept, sum(len(i.payload) for i in run))
        assert segment.appender is not None
        number = segment.head.segment_id
        head = f.ExtentHead(
            kind=run[0].kind,
            segment_id=number,
            scope=run[0].origin.scope,
            parent=run[0].parent,
            first_index=run[0].index,
            parts=tuple(
                f.PartEntry(item.name, item.crc32c, len(item.payload), item.is_exact)
                for item in run
            ),
        )
        offset = f.align(segment.size_bytes)
        payloads: list[bytes | memoryview] = [item.payload for item in run]
        cipher = self.cipher(segment.head)
        if cipher is not None:
            payloads = [
                cipher.encrypt(offset, i, item.name, item.payload) for i, item in enumerate(run)
            ]
        chunks = [
            bytes(offset - segment.size_bytes),
            f.encode_extent_head(head),
            *payloads,
        ]
        try:
            segment.appender.append(chunks)
        except (OSError, VolumeFull):
            self._cut(segment)
            raise
        return self._take_in(segment, offset, head, kept)

    def forget(self, extent: Extent, positions: Sequence[int]) -> int:
        """These parts are gone; their bytes are dead until the segment is moved. Bytes freed."""
        with self.lock:
            before = extent.live_bytes
            gone = []
            for position in positions:
                if extent.is_live(position):
                    extent.dead |= 1 << position
                    name = extent.names[position]
                    if self._index[extent.kind].get(name) is extent:
                        del self._index[extent.kind][name]
                        gone.append(name)
            freed = before - extent.live_bytes
            self.ledger.add(extent.segment.head.group, extent.kept, -freed)
            if gone and extent.kind is PartKind.BLOCK:
                self._on_change(False, gone)
            return freed

    def renew(self, extent: Extent, kept: Kept) -> None:
        """Prolong a promise; never shorten it."""
        with self.lock:
            longer = later(extent.kept, kept)
            if longer == extent.kept or not extent.num_live:
                return
            group = extent.segment.head.group
            self.ledger.add(group, extent.kept, -extent.live_bytes)
            extent.kept = longer
            self.ledger.add(group, extent.kept, extent.live_bytes)
            self._renewals.note((extent.segment.head.segment_id, extent.offset), longer)

    def drop(self, segment: Segment) -> int:
        """Delete a file with all that is in it; bytes freed."""
        with self.lock:
            for extent in segment.extents:
                self.forget(extent, list(extent.live_positions()))
            self.segments.pop(segment.head.segment_id, None)
            self._unsynced.discard(segment)
            for stream in [s for s, other in self._open.items() if other is segment]:
                del self._open[stream]
        if segment.appender is not None:
            segment.appender.close()
            segment.appender = None
        self.volume.remove(segment.name)
        return segment.size_bytes

    def seal(self, segment: Segment) -> None:
        """No more is appended to it."""
        for stream in [s for s, other in self._open.items() if other is segment]:
            del self._open[stream]
        if (appender := segment.seal(self.volume)) is not None:
            self._sealed.append(appender)
        self._unsynced.discard(segment)

    def sync(self) -> None:
        """What was appended so far survives a power cut, and so do promises."""
        unsynced, self._unsynced = self._unsynced, set()
        for segment in unsynced:
            if segment.appender is not None:
                segment.appender.sync()
        while self._sealed:
            appender = self._sealed.pop()
            appender.sync()
            appender.close()
        if self._has_new_files:
            self._has_new_files = False
            self.volume.sync()
        with self.lock:
            data = self._renewals.take()
        self._renewals.write(data)

    def seal_before(self, day: int) -> None:
        """Close the segments of past days: nothing new belongs in them."""
        for stream, segment in list(self._open.items()):
            if stream[0].day < day:
                self.seal(segment)

    def close(self) -> None:
        """Seal everything."""
        for segment in list(self._open.values()):
            self.seal(segment)
        self.sync()
        self._renewals.close()
        self.volume.sync()

    def _is_readable(self, head: f.SegmentHead) -> bool:
        has_key = not head.is_encrypted or self._key_of(head.group) is not None
        return has_key and self._is_known(head.group)

    def _adopt(self, segment: Segment, promises: dict[tuple[int, int], Kept]) -> None:
        self.segments[segment.head.segment_id] = segment
        for extent in segment.extents:
            promised = promises.get((segment.head.segment_id, extent.offset))
            if promised is not None:
                extent.kept = later(extent.kept, promised)
            self._enter(extent)

    def _enter(self, extent: Extent) -> None:
        """Into index and ledger; whoever held a part before holds it no more."""
        index = self._index[extent.kind]
        older: dict[int, Extent] = {}
        for name in extent.names:
            holder = index.get(name)
            if holder is not None and holder is not extent:
                older[id(holder)] = holder
            index[name] = extent
        for holder in older.values():
            extent.kept = later(extent.kept, holder.kept)
            before = holder.live_bytes
            for position, name in enumerate(holder.names):
                if index.get(name) is extent:
                    holder.dead |= 1 << position
            freed = before - holder.live_bytes
            self.ledger.add(holder.segment.head.group, holder.kept, -freed)
        self.ledger.add(extent.segment.head.group, extent.kept, extent.live_bytes)

    def _take_in(self, segment: Segment, offset: int, head: f.ExtentHead, kept: Kept) -> Extent:
        with self.lock:
            extent = segment.adopt(offset, head, kept, self._clock())
            segment.size_bytes = extent.end
            self._unsynced.add(segment)
            fresh = [name for name in extent.names if name not in self._index[extent.kind]]
            self._enter(extent)
            if extent.kept != kept:
                self._renewals.note((segment.head.segment_id, offset), extent.kept)
            if fresh and extent.kind is PartKind.BLOCK:
                self._on_change(True, fresh)
        return extent

    def _segment_for(self, origin: Origin, kept: Kept, size_bytes: int) -> Segment:
        stream = (kept, origin.group, origin.namespace, origin.layout_hash)
        segment = self._open.pop(stream, None)
        if segment is not None and segment.size_bytes + size_bytes > self._segment_bytes:
            self.seal(segment)
            segment = None
        if segment is None:
            if len(self._open) >= MAX_OPEN:
                self.seal(next(iter(self._open.values())))
            segment = self._create(origin, kept)
        self._open[stream] = segment  # last in the order of use
        return segment

    def _create(self, origin: Origin, kept: Kept) -> Segment:
        head = f.SegmentHead(
            segment_id=secrets.randbits(64),
            kept=kept,
            created_s=int(self._clock()),
            group=origin.group,
            namespace=origin.namespace,
            layout_hash=origin.layout_hash,
            is_encrypted=self._key_of(origin.group) is not None,
        )
        segment = Segment(head, 0)
        appender = self.volume.create(segment.name)
        data = f.encode_segment_head(head)
        try:
            appender.append([data])
        except (OSError, VolumeFull):
            appender.close()
            self.volume.remove(segment.name)
            raise
        self._has_new_files = True
        segment.appender, segment.size_bytes = appender, len(data)
        with self.lock:
            self.segments[head.segment_id] = segment
        return segment

    def _cut(self, segment: Segment) -> None:
        """Undo a write that failed half way. Nothing is appended behind it."""
        log.warning("write failed segment=%s", segment.name)
        self.volume.truncate(segment.name, segment.size_bytes)
        self.seal(segment)

    def cipher(self, head: f.SegmentHead) -> SegmentCipher | None:
        """None for a plain segment. Without its key every part fails to decrypt."""
        if not head.is_encrypted:
            return None
        return SegmentCipher(self._key_of(head.group) or b"", head.segment_id)
