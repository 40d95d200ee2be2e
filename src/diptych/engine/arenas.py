"""The memory behind pages: one arena of blocks, one of slots, and views of their sections.

Both lie in anonymous shared memory: it vanishes with the process, and a transfer process may map
it, too. Pages are zero, and take no memory, until they are first written.
"""

import mmap
import os

import torch
from torch import Tensor

from diptych.core.layout import Kind, Layout, LayoutEntry, Pool


class Arena:
    """`count` pages of `page_bytes`, one behind the other."""

    def __init__(self, name: str, page_bytes: int, count: int) -> None:
        self._page_bytes = page_bytes
        self._count = count
        self._bytes = memoryview(_anonymous(name, page_bytes * count))
        self._pages = torch.frombuffer(self._bytes, dtype=torch.uint8).view(count, page_bytes)

    def page(self, page: int) -> memoryview:
        """The bytes of a page, writable."""
        assert 0 <= page < self._count, f"page {page} of {self._count}"
        return self._bytes[page * self._page_bytes : (page + 1) * self._page_bytes]

    def section(self, entry: LayoutEntry) -> Tensor:
        """A view of one section of all pages: uint8 [pages, entries, bytes]."""
        count, stride = self._pages.shape
        shape = (count, entry.entries, entry.bytes_per_entry)
        return self._pages.as_strided(shape, (stride, shape[2], 1), entry.offset)


class Arenas:
    """Blocks and slots of an engine. Page 0 of each is padding and stays zero."""

    def __init__(self, layout: Layout, num_blocks: int, num_slots: int) -> None:
        self.layout = layout
        self._arenas = {
            Pool.BLOCK: Arena("diptych-blocks", layout.block_bytes, num_blocks + 1),
            Pool.SLOT: Arena("diptych-slots", layout.slot_bytes, num_slots + 1),
        }
        self._sections = {
            (entry.layer, entry.kind): self._arenas[entry.pool].section(entry)
            for entry in layout.entries
        }

    def section(self, layer: int, kind: Kind) -> Tensor:
        """uint8 [pages, entries, bytes] of a layer."""
        return self._sections[layer, kind]

    def sections(self, layer: int, *kinds: Kind) -> list[Tensor]:
        """Those of `kinds` that the layer has, in order."""
        keys = ((layer, kind) for kind in kinds)
        return [self._sections[key] for key in keys if key in self._sections]

    def block(self, page: int) -> memoryview:
        return self._arenas[Pool.BLOCK].page(page)

    def slot(self, slot: int) -> memoryview:
        return self._arenas[Pool.SLOT].page(slot)


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
