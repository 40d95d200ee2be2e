"""The bytes of a segment file, format 1. Pure.

Little-endian. A segment is a head, then extents, each at a multiple of 512, then a footer:

    segment head  "DPTS", version u16, flags u16, segment id u64, class u8, day u32, created u64,
                  group[16], namespace[16], layout hash[16], crc32c u32
    extent        "DPTX", kind u8, number of parts u8, segment id u64, scope[16], parent[16],
                  first index u32, then a part each (name[16], crc32c u32, bytes u32, flags u8),
                  crc32c u32; then the payloads, one after the other
    footer        an extent each (offset u64, length u32, the extent as above without payloads);
                  then "DPTF", number of extents u32, offset of the footer u64, crc32c u32

Every checksum covers all that stands before it, the footer's its whole. The checksum of a part is
of its plain bytes; an encrypted payload is longer by its tag.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from diptych.core.blocks import HASH_BYTES
from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import MAX_PARTS
from diptych.kvcache_store.retention import CODES, Kept
from diptych.transport.frames import PartKind, checksum

VERSION: Final = 1
ALIGNMENT: Final = 512  # of extents: where a scan looks for the next one
TAG_BYTES: Final = 16  # of AES-GCM

_ENCRYPTED: Final = 1
_EXACT: Final = 1
_SEGMENT: Final = struct.Struct("<4sHHQBIQ16s16s16s")
_EXTENT: Final = struct.Struct("<4sBBQ16s16sI")
_PART: Final = struct.Struct("<16sIIB")
_FOOTER_ENTRY: Final = struct.Struct("<QI")
_TRAILER: Final = struct.Struct("<4sIQ")
_CRC: Final = struct.Struct("<I")
_CLASSES: Final = {code: retention for retention, code in CODES.items()}

SEGMENT_HEAD_BYTES: Final = _SEGMENT.size + _CRC.size
TRAILER_BYTES: Final = _TRAILER.size + _CRC.size


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """What all extents of a segment share."""

    segment_id: int
    kept: Kept
    created_s: int
    group: bytes
    namespace: bytes
    layout_hash: bytes
    is_encrypted: bool = False


@dataclass(frozen=True, slots=True)
class PartEntry:
    """One part of an extent; `size_bytes` without a tag."""

    name: BlockHash
    crc32c: int
    size_bytes: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ExtentHead:
    """What stands before the payloads."""

    kind: PartKind
    segment_id: int
    scope: bytes
    parent: bytes
    first_index: int
    parts: tuple[PartEntry, ...]


def extent_head_bytes(num_parts: int) -> int:
    """What stands before the payloads of an extent."""
    return _EXTENT.size + num_parts * _PART.size + _CRC.size


def footer_entry_bytes(num_parts: int) -> int:
    """What an extent of so many parts will take of the footer."""
    return _FOOTER_ENTRY.size + extent_head_bytes(num_parts)


def most_bytes(num_parts: int, payload_bytes: int) -> int:
    """What appending an extent can take at most: a new segment, padding, tags, its footer."""
    extent = ALIGNMENT + extent_head_bytes(num_parts) + payload_bytes + num_parts * TAG_BYTES
    return ALIGNMENT + extent + footer_entry_bytes(num_parts) + TRAILER_BYTES


def align(size_bytes: int) -> int:
    """Up to where an extent may begin."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def encode_segment_head(head: SegmentHead) -> bytes:
    return _sealed(
        _SEGMENT.pack(
            b"DPTS",
            VERSION,
            _ENCRYPTED if head.is_encrypted else 0,
            head.segment_id,
            CODES[head.kept.retention],
            head.kept.day,
            head.created_s,
            head.group,
            head.namespace,
            head.layout_hash,
        )
    )


def decode_segment_head(data: bytes) -> SegmentHead | None:
    """None if this is no segment of this format."""
    body = _unsealed(data[:SEGMENT_HEAD_BYTES])
    if body is None or len(body) != _SEGMENT.size:
        return None
    magic, version, flags, number, code, day, created, group, namespace, layout = _SEGMENT.unpack(
        body
    )
    if magic != b"DPTS" or version != VERSION or code not in _CLASSES:
        return None
    kept = Kept(_CLASSES[code], day)
    is_encrypted = bool(flags & _ENCRYPTED)
    return SegmentHead(number, kept, created, group, namespace, layout, is_encrypted)


def encode_extent_head(head: ExtentHead) -> bytes:
    assert 1 <= len(head.parts) <= MAX_PARTS
    fixed = _EXTENT.pack(
        b"DPTX",
        head.kind,
        len(head.parts),
        head.segment_id,
        head.scope,
        head.parent,
        head.first_index,
    )
    table = [
        _PART.pack(p.name, p.crc32c, p.size_bytes, _EXACT if p.is_exact else 0) for p in head.parts
    ]
    return _sealed(b"".join((fixed, *table)))


def decode_extent_head(data: bytes | memoryview, segment_id: int) -> ExtentHead | None:
    """None unless the data begin with a whole, undamaged head of this segment."""
    if len(data) < _EXTENT.size or bytes(data[:4]) != b"DPTX":
        return None
    _, kind, count, number, scope, parent, first = _EXTENT.unpack_from(data)
    end = extent_head_bytes(count)
    body = _unsealed(data[:end]) if 1 <= count <= MAX_PARTS and len(data) >= end else None
    if body is None or number != segment_id or kind not in (PartKind.BLOCK, PartKind.ANCHOR):
        return None
    parts = tuple(
        PartEntry(BlockHash(name), crc, size, bool(flags & _EXACT))
        for name, crc, size, flags in _PART.iter_unpack(body[_EXTENT.size :])
    )
    return ExtentHead(PartKind(kind), number, scope, parent, first, parts)


def encode_footer(extents: Sequence[tuple[int, ExtentHead]], footer_at: int) -> bytes:
    """The footer of a file that is `footer_at` bytes long; extents with their offsets."""
    entries: list[bytes] = []
    for offset, head in extents:
        encoded = encode_extent_head(head)
        entries += (_FOOTER_ENTRY.pack(offset, len(encoded)), encoded)
    return _sealed(b"".join((*entries, _TRAILER.pack(b"DPTF", len(extents), footer_at))))


def footer_offset(trailer: bytes) -> int | None:
    """Where the footer begins, from a file's last TRAILER_BYTES; None if they are no trailer."""
    if len(trailer) != TRAILER_BYTES:
        return None
    magic, _, offset = _TRAILER.unpack_from(trailer)
    return int(offset) if magic == b"DPTF" else None


def decode_footer(data: bytes, segment_id: int) -> list[tuple[int, ExtentHead]] | None:
    """Extents with their offsets; None if anything about the footer is wrong."""
    body = _unsealed(data)
    if body is None or len(body) < _TRAILER.size:
        return None
    _, count, _ = _TRAILER.unpack_from(body, len(body) - _TRAILER.size)
    extents = list(_entries(body[: -_TRAILER.size], segment_id))
    return extents if len(extents) == count else None


def _entries(data: memoryview, segment_id: int) -> Iterator[tuple[int, ExtentHead]]:
    at = 0
    while at + _FOOTER_ENTRY.size <= len(data):
        offset, length = _FOOTER_ENTRY.unpack_from(data, at)
        at += _FOOTER_ENTRY.size
        head = decode_extent_head(data[at : at + length], segment_id)
        if head is None:
            return
        yield offset, head
        at += length


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(checksum(body))


def _unsealed(data: bytes | memoryview) -> memoryview | None:
    """What stands before the checksum, if that is right."""
    view = memoryview(data)
    if len(view) <= _CRC.size:
        return None
    (crc,) = _CRC.unpack(view[-_CRC.size :])
    body = view[: -_CRC.size]
    return body if checksum(body) == crc else None


assert HASH_BYTES == 16
