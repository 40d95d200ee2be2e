"""The one table of where each byte of a block, of a slot and of an anchor lies.

A *block* holds the compressed KV of `grain` tokens of all KV source layers; a *slot* holds what a
sequence needs whatever its length: window rings and compressor carries. An *anchor* is a copy of
the windows that replay cannot rebuild, as they stood at one position: oldest record first, not a
ring. Kernels, pools, hand-off and tiers all read this table; two engines may exchange bytes only
if their layout hashes agree.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

ALIGNMENT = 32  # of a section
STRIDE_ALIGNMENT = 128  # of a whole block, slot or anchor


class Pool(StrEnum):
    """Where an entry lives."""

    BLOCK = auto()
    SLOT = auto()
    ANCHOR = auto()


class Kind(StrEnum):
    """What an entry holds."""

    ENTRY = auto()  # main compressed KV records
    INDEX = auto()  # index key data
    INDEX_SCALE = auto()  # index key scales, apart from the data
    WINDOW = auto()  # ring of sliding-window records
    CARRY = auto()  # ring of compressor inputs: value, score
    ANCHOR = auto()  # sliding-window records in order of position


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One section: `entries` records of `bytes_per_entry`, from `offset` in its page."""

    name: str
    pool: Pool
    layer: int
    kind: Kind
    offset: int
    bytes_per_entry: int
    entries: int
    ratio: int
    dropped: bool  # not kept by the cache tier: rebuilt by replay

    @property
    def size_bytes(self) -> int:
        return self.bytes_per_entry * self.entries


@dataclass(frozen=True, slots=True)
class Section:
    """A section before it has an offset."""

    pool: Pool
    layer: int
    kind: Kind
    bytes_per_entry: int
    entries: int
    ratio: int = 0
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The table, with the sizes and the identity that follow from it."""

    grain: int  # tokens a block
    ring: int  # records of a window ring
    numerics: str
    entries: tuple[LayoutEntry, ...]
    block_bytes: int
    slot_bytes: int
    anchor_bytes: int

    def find(self, layer: int, kind: Kind) -> LayoutEntry:
        """The section of a layer; KeyError if the layer has none of this kind."""
        for entry in self.entries:
            if entry.layer == layer and entry.kind is kind:
                return entry
        raise KeyError(f"layer {layer} has no {kind} section")

    @property
    def digest(self) -> bytes:
        """BLAKE2b-128 over every field of every entry: the layout hash."""
        state = hashlib.blake2b(digest_size=16)
        state.update(f"layout/v1|{self.grain}|{self.ring}|{self.numerics}\n".encode())
        for e in self.entries:
            fields = (
                e.name,
                e.pool,
                e.layer,
                e.kind,
                e.offset,
                e.bytes_per_entry,
                e.entries,
                e.ratio,
            )
            state.update(("|".join(map(str, (*fields, e.dropped))) + "\n").encode())
        return state.digest()


def make_layout(
    sections: Sequence[Section], *, grain: int, ring: int, numerics: str, window: int = 0
) -> Layout:
    """Place the sections one after the other, each pool apart.

    An anchor has `window` records of every window ring that the cache tier keeps.
    """
    anchors = [
        Section(Pool.ANCHOR, s.layer, Kind.ANCHOR, s.bytes_per_entry, window)
        for s in sections
        if window and s.kind is Kind.WINDOW and not s.dropped
    ]
    ends = dict.fromkeys(Pool, 0)
    entries = []
    for s in (*sections, *anchors):
        offset = _round_up(ends[s.pool], ALIGNMENT)
        entry = LayoutEntry(
            name=f"{s.kind}.{s.layer}",
            pool=s.pool,
            layer=s.layer,
            kind=s.kind,
            offset=offset,
            bytes_per_entry=s.bytes_per_entry,
            entries=s.entries,
            ratio=s.ratio,
            dropped=s.dropped,
        )
        ends[s.pool] = offset + entry.size_bytes
        entries.append(entry)
    page_bytes = {pool: _round_up(end, STRIDE_ALIGNMENT) for pool, end in ends.items()}
    return Layout(
        grain=grain,
        ring=ring,
        numerics=numerics,
        entries=tuple(entries),
        block_bytes=page_bytes[Pool.BLOCK],
        slot_bytes=page_bytes[Pool.SLOT],
        anchor_bytes=page_bytes[Pool.ANCHOR],
    )


def ring_size(window: int, draft_tokens: int) -> int:
    """Records of a window ring: the window, the drafts behind it, one more; a multiple of 8."""
    return _round_up(window + draft_tokens + 1, 8)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
