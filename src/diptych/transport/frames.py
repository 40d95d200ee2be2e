"""Block frames: the bytes of GetBlocks, and what a receiver accepts.

Little-endian. Header: magic u32, version u16, flags u16, seq u32, n u16, kind u16; then n times
(hash[16], crc32c u32, bytes u32); then the n payloads. Pure: no streams, no clock.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Protocol, runtime_checkable

import crc32c as crc32c_library

from diptych.core.errors import Lost
from diptych.core.ids import BlockHash

MAGIC: Final = int.from_bytes(b"DPTB", "little")
VERSION: Final = 1
LAST: Final = 1  # flag: nothing follows
PARTS_A_FRAME: Final = 8

_HEADER: Final = struct.Struct("<IHHIHH")
_ENTRY: Final = struct.Struct("<16sII")


class PartKind(IntEnum):
    """What a part is; a frame has one kind."""

    BLOCK = 1  # full, named by its chain hash
    TAIL = 2  # the last, partial block of a ticket
    SLOT = 3  # window rings and carries of a ticket
    ANCHOR = 4  # encoder windows at the end of the block whose hash it carries


class Fault(StrEnum):
    """Error codes of a frame that is not accepted."""

    LENGTH = "frame_length"
    MAGIC = "frame_magic"
    VERSION = "frame_version"
    FLAGS = "frame_flags"
    KIND = "frame_kind"
    SEQUENCE = "frame_sequence"
    UNKNOWN = "frame_unknown_hash"
    DUPLICATE = "frame_duplicate"
    SIZE = "frame_size"
    CHECKSUM = "frame_checksum"
    INCOMPLETE = "frame_incomplete"


class BadFrame(Lost):
    """A frame that was not accepted; the bytes it carried do not count as loaded."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message, code=fault)


@dataclass(frozen=True, slots=True)
class Part:
    """A block, tail, slot or anchor with its name and checksum."""

    kind: PartKind
    name: BlockHash
    crc32c: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, decoded; payloads are views of the received bytes."""

    seq: int
    is_last: bool
    parts: tuple[Part, ...]


def checksum(data: memoryview | bytes | bytearray) -> int:
    """CRC-32C (Castagnoli) of some bytes."""
    return int(crc32c_library.crc32c(data))


def encode(seq: int, parts: Sequence[Part], *, is_last: bool) -> bytes:
    """The bytes of a frame of 1 to 8 parts of one kind."""
    assert 1 <= len(parts) <= PARTS_A_FRAME and len({p.kind for p in parts}) == 1
    flags = LAST if is_last else 0
    head = _HEADER.pack(MAGIC, VERSION, flags, seq, len(parts), parts[0].kind)
    entries = [_ENTRY.pack(p.name, p.crc32c, len(p.payload)) for p in parts]
    return b"".join((head, *entries, *(p.payload for p in parts)))


def decode(data: bytes) -> Frame:
    """Read a frame; BadFrame unless every byte of it is accounted for."""
    if len(data) < _HEADER.size:
        raise BadFrame(Fault.LENGTH, f"a frame of {len(data)} bytes has no header")
    magic, version, flags, seq, count, kind = _HEADER.unpack_from(data)
    _expect(Fault.MAGIC, "magic", magic, magic == MAGIC)
    _expect(Fault.VERSION, "version", version, version == VERSION)
    _expect(Fault.FLAGS, "flags", flags, flags in (0, LAST))
    _expect(Fault.KIND, "kind", kind, kind in PartKind.__members__.values())
    _expect(Fault.LENGTH, "part count", count, 1 <= count <= PARTS_A_FRAME)
    start = _HEADER.size + count * _ENTRY.size
    if len(data) < start:
        raise BadFrame(Fault.LENGTH, f"a frame of {len(data)} bytes ends in its table")
    entries = list(_ENTRY.iter_unpack(data[_HEADER.size : start]))
    if len(data) != start + sum(size for _, _, size in entries):
        raise BadFrame(Fault.LENGTH, f"a frame of {len(data)} bytes does not match its table")
    return Frame(seq, bool(flags & LAST), tuple(_parts(data, start, PartKind(kind), entries)))


def _parts(
    data: bytes, start: int, kind: PartKind, entries: Sequence[tuple[bytes, int, int]]
) -> Iterator[Part]:
    view = memoryview(data).toreadonly()
    for name, crc, size in entries:
        yield Part(kind, BlockHash(name), crc, view[start : start + size])
        start += size


def _expect(fault: Fault, field: str, value: int, holds: bool) -> None:
    if not holds:
        raise BadFrame(fault, f"a frame with {field} {value:#x}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a wanted part goes."""

    kind: PartKind
    into: memoryview  # exactly as long as the part


class BlockReader(Protocol):
    """Parts under one ticket."""

    def read(self, name: BlockHash) -> Part:
        """The part; Lost if it, or the right to it, is gone."""
        ...


@runtime_checkable
class RunReader(Protocol):
    """Parts that lie further away: a frame's worth at a time, fetched ahead of being sent."""

    async def read_run(self, names: Sequence[BlockHash]) -> Sequence[Part]:
        """Up to 8 parts of one kind, the first of `names` in order; none if the first is missing.

        A stream ends with the last part before a missing one.
        """
        ...


class BlockWriter(Protocol):
    """Room for the parts of one request."""

    def place(self, name: BlockHash) -> Place:
        """Where the part goes."""
        ...


class Receiver:
    """Takes the frames of one transfer in order; `done` are the parts that arrived and checked."""

    def __init__(self, wanted: Sequence[BlockHash], writer: BlockWriter) -> None:
        self.wanted = tuple(wanted)
        self.done: set[BlockHash] = set()
        self.has_ended = False
        self._awaited = frozenset(wanted)
        self._writer = writer
        self._next_seq = 0

    def accept(self, data: bytes) -> int:
        """Copy a frame's parts to their places, then check what lies there; bytes consumed."""
        frame = decode(data)
        if self.has_ended or frame.seq != self._next_seq:
            raise BadFrame(
                Fault.SEQUENCE, f"frame {frame.seq} came where {self._next_seq} was expected"
            )
        self._next_seq += 1
        self.take(frame.parts, is_last=frame.is_last)
        return len(data)

    def take(self, parts: Sequence[Part], *, is_last: bool) -> None:
        """Likewise for parts that came by another way than a frame."""
        self.has_ended = is_last
        for part in parts:
            self._put(part)

    def finish(self) -> None:
        """The stream has ended: BadFrame unless all that was wanted is here."""
        if not self.has_ended or self.done != self._awaited:
            raise BadFrame(
                Fault.INCOMPLETE,
                f"the stream ended after {len(self.done)} of {len(self._awaited)} parts",
            )

    def _put(self, part: Part) -> None:
        name = part.name.hex()
        if part.name not in self._awaited:
            raise BadFrame(Fault.UNKNOWN, f"part {name} was not asked for")
        if part.name in self.done:
            raise BadFrame(Fault.DUPLICATE, f"part {name} came twice")
        place = self._writer.place(part.name)
        if part.kind is not place.kind:
            raise BadFrame(Fault.KIND, f"part {name} is a {part.kind.name}, not {place.kind.name}")
        if len(part.payload) != len(place.into):
            raise BadFrame(
                Fault.SIZE, f"part {name} has {len(part.payload)} bytes, not {len(place.into)}"
            )
        place.into[:] = part.payload
        if checksum(place.into) != part.crc32c:
            raise BadFrame(Fault.CHECKSUM, f"part {name} does not match its checksum")
        self.done.add(part.name)


class Credit:
    """Bytes that may still be sent. A frame goes while it is positive, overdrawing once."""

    def __init__(self, size_bytes: int) -> None:
        self.left_bytes = size_bytes

    @property
    def is_open(self) -> bool:
        return self.left_bytes > 0

    def spend(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        self.left_bytes += size_bytes
