"""Memory that two processes of one host share: slots in an anonymous file, which a kill leaves
nothing of. Who owns it hands out (pid, descriptor); who attaches checks that it is what was meant.
"""

import mmap
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from diptych.core.errors import Refused
from diptych.core.ids import BlockHash
from diptych.transport.frames import BadFrame, Fault, Part, PartKind

SLOTS: Final = 4
SLOT_BYTES: Final = 4 << 20
MOST_BYTES: Final = 256 << 20
NONCE_BYTES: Final = 32
_NAME: Final = "diptych-window"
_HEAD_BYTES: Final = 4096  # the nonce's page; slots follow


@dataclass(frozen=True, slots=True)
class Filled:
    """What a slot holds: parts of one kind, one after the other from its beginning."""

    slot: int
    kind: PartKind
    names: tuple[BlockHash, ...]
    crcs: tuple[int, ...]
    sizes: tuple[int, ...]
    is_last: bool


class Window:
    """Slots that one side fills and the other empties; whose turn it is goes by messages."""

    def __init__(self, file: int, num_slots: int, slot_bytes: int) -> None:
        self.file = file
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._map = mmap.mmap(file, _HEAD_BYTES + num_slots * slot_bytes)
        self._view = memoryview(self._map)

    @classmethod
    def create(cls, num_slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> Self:
        """A window of our own; Refused where the system has no such files."""
        if sys.platform != "linux":
            raise Refused("shared memory needs Linux", code="no_shared_memory")
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, _HEAD_BYTES + num_slots * slot_bytes)
            window = cls(file, num_slots, slot_bytes)
        except BaseException:
            os.close(file)
            raise
        window._view[:NONCE_BYTES] = secrets.token_bytes(NONCE_BYTES)
        return window

    @classmethod
    def attach(cls, pid: int, file: int, num_slots: int, slot_bytes: int, nonce: bytes) -> Self:
        """A peer's window; Refused unless it is one, on this host, as large as is said."""
        size = _HEAD_BYTES + num_slots * slot_bytes
        if not (1 <= num_slots <= 64 and slot_bytes >= 1 and size <= MOST_BYTES):
            raise Refused("a window of an impossible size", code="no_shared_memory")
        with _opened(f"/proc/{pid}/fd/{file}") as ours:
            found = os.fstat(ours)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise Refused("the window is not what was announced", code="no_shared_memory")
            window = cls(ours, num_slots, slot_bytes)
            window.file = -1  # the mapping has a descriptor of its own
        if len(nonce) != NONCE_BYTES or window.nonce != nonce:
            window.close()
            raise Refused("the window is another one", code="no_shared_memory")
        return window

    @property
    def nonce(self) -> bytes:
        return bytes(self._view[:NONCE_BYTES])

    def slot(self, number: int) -> memoryview:
        """A slot's bytes; Refused for one that does not exist."""
        if not 0 <= number < self.num_slots:
            raise Refused("a slot that does not exist", code="no_shared_memory")
        start = _HEAD_BYTES + number * self.slot_bytes
        return self._view[start : start + self.slot_bytes]

    def fill(self, number: int, parts: Sequence[Part], kind: PartKind, *, is_last: bool) -> Filled:
        """Copy parts into a slot, which must have room for them."""
        slot = self.slot(number)
        at = 0
        for part in parts:
            slot[at : at + len(part.payload)] = part.payload
            at += len(part.payload)
        return Filled(
            slot=number,
            kind=kind,
            names=tuple(part.name for part in parts),
            crcs=tuple(part.crc32c for part in parts),
            sizes=tuple(len(part.payload) for part in parts),
            is_last=is_last,
        )

    def close(self) -> None:
        """Let go of it; whoever still holds a slot's view keeps the memory alive."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self._view.release()
        with suppress(BufferError):  # a view is in use: the mapping goes with it
            self._map.close()


def parts_in(data: memoryview, filled: Filled) -> list[Part]:
    """The parts of a slot, or of a copy of it, as views; BadFrame if they do not fit."""
    if not len(filled.names) == len(filled.crcs) == len(filled.sizes):
        raise BadFrame(Fault.LENGTH, "a slot whose table is uneven")
    if sum(filled.sizes) > len(data):
        raise BadFrame(Fault.LENGTH, f"a slot of {len(data)} bytes cannot hold what it says")
    parts: list[Part] = []
    at = 0
    for name, crc, size in zip(filled.names, filled.crcs, filled.sizes, strict=True):
        parts.append(Part(filled.kind, name, crc, data[at : at + size]))
        at += size
    return parts


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise Refused("not a window", code="no_shared_memory")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(
            f"the peer's memory cannot be reached: {error.strerror}", code="no_shared_memory"
        ) from error
    try:
        yield file
    finally:
        os.close(file)
