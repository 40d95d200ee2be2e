"""Reading parts back from segments: nothing is handed out whose checksum was not just computed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Item, Origin
from diptych.kvcache_store.segment import Extent
from diptych.kvcache_store.segments import Segments
from diptych.transport.frames import PartKind, checksum

log = logging.getLogger(__name__)

LOOKS = 3  # at an index whose segment was moved away before it could be read


@dataclass(slots=True)
class Readings:
    """What reading has met since start."""

    read_bytes: int = 0
    corrupt: int = 0  # parts that were dropped because their bytes were wrong


class Reader:
    """Reads extents; what is damaged is forgotten on the spot."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.counts = Readings()

    def read(
        self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]
    ) -> tuple[list[Item], list[Extent]]:
        """The parts up to the first that is missing, damaged or another's; where they were."""
        done: list[Item] = []
        extents: list[Extent] = []
        looks = 0
        while len(done) < len(names):
            batch = self._batch(origin, kind, names[len(done) :])
            if batch is None:
                break
            extent, first, last = batch
            try:
                items = self.read_extent(extent, first, last)
            except FileNotFoundError:
                looks += 1
                if looks == LOOKS:
                    break
                continue
            done += items
            extents.append(extent)
            if len(items) <= last - first:
                break
        return done, extents

    def read_extent(self, extent: Extent, first: int, last: int) -> list[Item]:
        """Live, verified parts from position `first` up to the first damaged one.

        FileNotFoundError when the segment has been moved meanwhile.
        """
        start, size = extent.span(first, last)
        data = memoryview(self._segments.volume.read(extent.segment.name, start, size))
        cipher = self._segments.cipher(extent.segment.head)
        items: list[Item] = []
        at = 0
        for position in range(first, last + 1):
            end = at + extent.sizes[position] + extent.segment.tag_bytes
            stored: memoryview | None = data[at:end] if end <= len(data) else None
            at = end
            if not extent.is_live(position):
                continue
            if stored is not None and cipher is not None:
                stored = cipher.decrypt(extent.offset, position, extent.names[position], stored)
            if stored is None or checksum(stored) != extent.crcs[position]:
                self._drop(extent, position)
                break
            self.counts.read_bytes += len(stored)
            items.append(_item(extent, position, stored))
        return items

    def _batch(
        self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]
    ) -> tuple[Extent, int, int] | None:
        """The next names that lie side by side: extent, first and last position."""
        with self._segments.lock:
            found = self._segments.find(kind, names[0], origin)
            if found is None:
                return None
            extent, first = found
            last = first
            for name, following in zip(
                names[1:], range(first + 1, len(extent.names)), strict=False
            ):
                if extent.names[following] != name or not extent.is_live(following):
                    break
                last = following
        return extent, first, last

    def _drop(self, extent: Extent, position: int) -> None:
        self.counts.corrupt += 1
        name = extent.names[position].hex()
        log.error("damaged part dropped segment=%s part=%s", extent.segment.name, name)
        self._segments.forget(extent, [position])


def _item(extent: Extent, position: int, payload: memoryview) -> Item:
    head = extent.segment.head
    is_block = extent.kind is PartKind.BLOCK
    return Item(
        origin=Origin(head.namespace, head.layout_hash, extent.scope, head.group),
        kind=extent.kind,
        name=extent.names[position],
        parent=extent.parent_of(position),
        index=extent.first_index + position if is_block else extent.first_index,
        is_exact=extent.is_exact(position),
        crc32c=extent.crcs[position],
        payload=payload,
    )
