"""One segment file: what is known of its extents, how it is opened again, closed, scanned."""

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from diptych.core.ids import BlockHash
from diptych.kvcache_store import format as f
from diptych.kvcache_store.items import MAX_PARTS
from diptych.kvcache_store.retention import DAY_S, Kept
from diptych.kvcache_store.volume import Appender, Volume, VolumeFull
from diptych.transport.frames import PartKind

SUFFIX: Final = ".seg"
_WINDOW_BYTES: Final = 1 << 20  # of a scan for the next extent

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Extent:
    """Parts that lie side by side: the unit of what is remembered, renewed, moved, evicted."""

    segment: "Segment"
    offset: int
    kind: PartKind
    scope: bytes
    parent: bytes
    first_index: int
    names: tuple[BlockHash, ...]
    sizes: "array[int]"  # of the parts' plain bytes
    crcs: "array[int]"
    payload_at: int  # where the first payload begins in the file
    end: int
    exact: int  # bits by position
    kept: Kept
    used_s: float  # last written or read; after a restart, when its day began
    dead: int = 0  # bits by position
    reads: int = 0

    @property
    def num_live(self) -> int:
        return len(self.names) - self.dead.bit_count()

    @property
    def footprint_bytes(self) -> int:
        """What it takes of its file, with head and padding."""
        return f.align(self.end) - self.offset

    @property
    def live_bytes(self) -> int:
        """Its footprint's share that its live parts have."""
        if not self.dead:
            return self.footprint_bytes
        live = sum(size for i, size in enumerate(self.sizes) if self.is_live(i))
        return self.footprint_bytes * live // max(1, sum(self.sizes)) if self.num_live else 0

    def is_live(self, position: int) -> bool:
        return not self.dead >> position & 1

    def is_exact(self, position: int) -> bool:
        return bool(self.exact >> position & 1)

    def live_positions(self) -> Iterator[int]:
        return (i for i in range(len(self.names)) if self.is_live(i))

    def parent_of(self, position: int) -> bytes:
        if self.kind is PartKind.ANCHOR:
            return self.names[position]
        return self.names[position - 1] if position else self.parent

    def span(self, first: int, last: int) -> tuple[int, int]:
        """(offset in the file, bytes) of the payloads from `first` to `last`."""
        tag = self.segment.tag_bytes
        start = self.payload_at + sum(self.sizes[:first]) + first * tag
        return start, sum(self.sizes[first : last + 1]) + (last + 1 - first) * tag

    def head(self) -> f.ExtentHead:
        """As it stands in the file."""
        parts = zip(self.names, self.crcs, self.sizes, strict=True)
        return f.ExtentHead(
            self.kind,
            self.segment.head.segment_id,
            self.scope,
            self.parent,
            self.first_index,
            tuple(
                f.PartEntry(name, crc, size, self.is_exact(i))
                for i, (name, crc, size) in enumerate(parts)
            ),
        )


@dataclass(eq=False, slots=True)
class Segment:
    """A file. While it has an appender it grows; afterwards it never changes."""

    head: f.SegmentHead
    size_bytes: int
    appender: Appender | None = None
    extents: list[Extent] = field(default_factory=list)
    moved_bytes: int = 0  # footprint of its parts that were copied elsewhere: it is on its way out

    @property
    def name(self) -> str:
        return f"{self.head.segment_id:016x}{SUFFIX}"

    @property
    def tag_bytes(self) -> int:
        return f.TAG_BYTES if self.head.is_encrypted else 0

    @property
    def live_bytes(self) -> int:
        return sum(extent.live_bytes for extent in self.extents)

    @property
    def reclaimable_bytes(self) -> int:
        """What moving the live parts elsewhere would give back."""
        return sum(extent.footprint_bytes - extent.live_bytes for extent in self.extents)

    @property
    def footer_bytes(self) -> int:
        """What sealing will add."""
        if self.appender is None:
            return 0
        entries = sum(f.footer_entry_bytes(len(extent.names)) for extent in self.extents)
        return entries + f.TRAILER_BYTES

    def adopt(self, offset: int, head: f.ExtentHead, kept: Kept, used_s: float) -> Extent:
        """Remember an extent that stands in the file."""
        payload_at = offset + f.extent_head_bytes(len(head.parts))
        extent = Extent(
            segment=self,
            payload_at=payload_at,
            end=payload_at + sum(part.size_bytes + self.tag_bytes for part in head.parts),
            offset=offset,
            kind=head.kind,
            scope=head.scope,
            parent=head.parent,
            first_index=head.first_index,
            names=tuple(part.name for part in head.parts),
            sizes=array("I", (part.size_bytes for part in head.parts)),
            crcs=array("I", (part.crc32c for part in head.parts)),
            exact=sum(part.is_exact << i for i, part in enumerate(head.parts)),
            kept=kept,
            used_s=used_s,
        )
        self.extents.append(extent)
        return extent

    def seal(self, volume: Volume) -> Appender | None:
        """Write the footer; without room the file goes without. The file, to be synced, closed."""
        if self.appender is None:
            return None
        appender, self.appender = self.appender, None
        heads = [(extent.offset, extent.head()) for extent in self.extents]
        footer = f.encode_footer(heads, self.size_bytes)
        try:
            appender.append([footer])
            self.size_bytes += len(footer)
        except (OSError, VolumeFull) as error:
            log.warning("no footer segment=%s why=%s", self.name, error)
            volume.truncate(self.name, self.size_bytes)
        return appender


@dataclass(frozen=True, slots=True)
class Opened:
    """A segment found on the volume."""

    segment: Segment
    torn_bytes: int  # of a tail that was never written whole
    was_scanned: bool  # it had no valid footer


def open_segment(volume: Volume, name: str) -> Opened | None:
    """Read a segment's index; None if the file is no segment of this format.

    Without a valid footer the file is scanned, a torn tail cut off, and the footer written. It is
    never appended to again: what was half written at its end can never be mistaken.
    """
    size = volume.size(name)
    head = f.decode_segment_head(volume.read(name, 0, f.SEGMENT_HEAD_BYTES))
    if head is None or name != f"{head.segment_id:016x}{SUFFIX}":
        return None
    segment = Segment(head, size)
    began_s = float(head.kept.day * DAY_S)
    footer = _footer(volume, segment)
    if footer is not None:
        for offset, extent in footer:
            segment.adopt(offset, extent, head.kept, began_s)
        return Opened(segment, torn_bytes=0, was_scanned=False)
    end = f.SEGMENT_HEAD_BYTES
    for offset, extent in _scan(volume, segment):
        end = segment.adopt(offset, extent, head.kept, began_s).end
    volume.truncate(name, end)
    segment.size_bytes = end
    segment.appender = volume.extend(name)
    if (appender := segment.seal(volume)) is not None:
        appender.sync()
        appender.close()
    return Opened(segment, torn_bytes=size - end, was_scanned=True)


def _footer(volume: Volume, segment: Segment) -> list[tuple[int, f.ExtentHead]] | None:
    size = segment.size_bytes
    trailer = volume.read(segment.name, max(0, size - f.TRAILER_BYTES), f.TRAILER_BYTES)
    offset = f.footer_offset(trailer)
    if offset is None or not f.SEGMENT_HEAD_BYTES <= offset < size:
        return None
    data = volume.read(segment.name, offset, size - offset)
    return f.decode_footer(data, segment.head.segment_id)


def _scan(volume: Volume, segment: Segment) -> Iterator[tuple[int, f.ExtentHead]]:
    """Whole extents in the file, past damage between them."""
    number, size = segment.head.segment_id, segment.size_bytes
    at = f.align(f.SEGMENT_HEAD_BYTES)
    while at < size:
        data = volume.read(segment.name, at, f.extent_head_bytes(MAX_PARTS))
        head = f.decode_extent_head(data, number)
        if head is not None:
            payload = sum(part.size_bytes + segment.tag_bytes for part in head.parts)
            end = at + f.extent_head_bytes(len(head.parts)) + payload
            if end <= size:
                yield at, head
                at = f.align(end)
                continue
        at = _next_candidate(volume, segment, at + f.ALIGNMENT)


def _next_candidate(volume: Volume, segment: Segment, start: int) -> int:
    """The first aligned place from `start` on that looks like an extent, or the file's end."""
    for at in range(start, segment.size_bytes, _WINDOW_BYTES):
        data = volume.read(segment.name, at, _WINDOW_BYTES)
        for offset in range(0, len(data), f.ALIGNMENT):
            if data[offset : offset + 4] == b"DPTX":
                return at + offset
    return segment.size_bytes
