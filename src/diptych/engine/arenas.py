"""The memory behind pages: arenas of blocks, slots and anchors, and views of their sections.

They lie in anonymous shared memory: it vanishes with the process, and a transfer process may map
it, too. Pages are zero, and take no memory, until they are first written.
"""

import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from diptych.core.layout import Kind, Layout, LayoutEntry, Pool
from diptych.engine.anchors import AnchorCopy
from diptych.engine.swap import SwapCopy

_NO_BYTES = torch.empty(0, dtype=torch.uint8)


class Arena:
    """`count` pages of `page_bytes`, one behind the other."""

    def __init__(self, name: str, page_bytes: int, count: int) -> None:
        self.count = count
        self._page_bytes = page_bytes
        size = page_bytes * count
        self._bytes = memoryview(_anonymous(name, size) if size else b"")
        flat = torch.frombuffer(self._bytes, dtype=torch.uint8) if size else _NO_BYTES
        self.pages = flat.view(count, page_bytes)  # uint8 [pages, bytes]

    def page(self, page: int) -> memoryview:
        """The bytes of a page, writable."""
        assert 0 <= page < self.count, f"page {page} of {self.count}"
        return self._bytes[page * self._page_bytes : (page + 1) * self._page_bytes]

    def section(self, entry: LayoutEntry) -> Tensor:
        """A view of one section of all pages: uint8 [pages, entries, bytes]."""
        shape = (self.count, entry.entries, entry.bytes_per_entry)
        return self.pages.as_strided(shape, (self._page_bytes, shape[2], 1), entry.offset)

    def stacked(self, entries: Sequence[LayoutEntry]) -> Tensor:
        """A view of like sections, equally far apart: uint8 [pages, n, entries, bytes]."""
        first, step = entries[0], entries[-1].offset - entries[0].offset
        step = step // max(len(entries) - 1, 1)
        for place, entry in enumerate(entries):
            assert entry.offset == first.offset + place * step, "sections are not equally far"
            assert entry.size_bytes == first.size_bytes, "sections are not alike"
        shape = (self.count, len(entries), first.entries, first.bytes_per_entry)
        strides = (self._page_bytes, step, first.bytes_per_entry, 1)
        return self.pages.as_strided(shape, strides, first.offset)


class Arenas:
    """Blocks and slots of an engine (page 0 is padding and stays zero), anchors, host pages."""

    def __init__(
        self,
        layout: Layout,
        num_blocks: int,
        num_slots: int,
        num_anchors: int = 0,
        num_host_blocks: int = 0,
        num_host_slots: int = 0,
    ) -> None:
        self.layout = layout
        self.num_slots = num_slots
        self._blocks = Arena("diptych-blocks", layout.block_bytes, num_blocks + 1)
        self._slots = Arena("diptych-slots", layout.slot_bytes, num_slots + 1)
        self._anchors = Arena("diptych-anchors", layout.anchor_bytes, num_anchors)
        self._host_blocks = Arena("diptych-host-blocks", layout.block_bytes, num_host_blocks)
        self._host_slots = Arena("diptych-host-slots", layout.slot_bytes, num_host_slots)
        arenas = {Pool.BLOCK: self._blocks, Pool.SLOT: self._slots, Pool.ANCHOR: self._anchors}
        self._sections = {
            (entry.layer, entry.kind): arenas[entry.pool].section(entry) for entry in layout.entries
        }

    def section(self, layer: int, kind: Kind) -> Tensor:
        """uint8 [pages, entries, bytes] of a layer."""
        return self._sections[layer, kind]

    def sections(self, layer: int, *kinds: Kind) -> list[Tensor]:
        """Those of `kinds` that the layer has, in order."""
        keys = ((layer, kind) for kind in kinds)
        return [self._sections[key] for key in keys if key in self._sections]

    def block(self, page: int) -> memoryview:
        return self._blocks.page(page)

    def slot(self, slot: int) -> memoryview:
        return self._slots.page(slot)

    def anchor(self, page: int) -> memoryview:
        return self._anchors.page(page)

    def save_anchor(self, order: AnchorCopy) -> None:
        """Copy the windows before a position, the slot's next one, out of their rings."""
        rings, anchors = self._windows()
        positions = torch.arange(order.position - anchors.shape[2], order.position)
        records = rings[order.slot].index_select(1, positions % self.layout.ring)
        anchors[order.page] = records.masked_fill((positions < 0).view(1, -1, 1), 0)

    def load_anchor(self, order: AnchorCopy) -> None:
        """Make the anchor's position the slot's next one: the inverse of `save_anchor`."""
        rings, anchors = self._windows()
        known = min(anchors.shape[2], order.position)  # records before the start are none
        positions = torch.arange(order.position - known, order.position)
        records = anchors[order.page, :, anchors.shape[2] - known :]
        rings[order.slot].index_copy_(1, positions % self.layout.ring, records)

    def swap_out(self, order: SwapCopy) -> None:
        """Copy a sequence's pages into host pages."""
        _copy(self._blocks, order.blocks, self._host_blocks, order.host_blocks)
        _copy(self._slots, (order.slot,), self._host_slots, (order.host_slot,))

    def swap_in(self, order: SwapCopy) -> None:
        """Copy host pages into a sequence's pages."""
        _copy(self._host_blocks, order.host_blocks, self._blocks, order.blocks)
        _copy(self._host_slots, (order.host_slot,), self._slots, (order.slot,))

    def _windows(self) -> tuple[Tensor, Tensor]:
        """Kept rings [slots, layers, ring, bytes] and their anchors [pages, layers, W, bytes]."""
        anchors = [e for e in self.layout.entries if e.kind is Kind.ANCHOR]
        assert anchors, "the layout has no anchors"
        rings = [self.layout.find(entry.layer, Kind.WINDOW) for entry in anchors]
        return self._slots.stacked(rings), self._anchors.stacked(anchors)


def _copy(source: Arena, pages: Sequence[int], target: Arena, places: Sequence[int]) -> None:
    """Whole pages of one arena into pages of another."""
    for page, place in zip(pages, places, strict=True):
        target.page(place)[:] = source.page(page)


def _anonymous(name: str, size_bytes: int) -> mmap.mmap:
    """Shared memory without a file; where the system has no memfd, a plain anonymous mapping."""
    if not hasattr(os, "memfd_create"):
        return mmap.mmap(-1, size_bytes)
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_bytes)
        return mmap.mmap(descriptor, size_bytes)  # keeps a descriptor of its own
    finally:
        os.close(descriptor)
