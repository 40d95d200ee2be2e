"""The journal of promises that reads have prolonged, so that a restart does not forget them.

Records of (segment id u64, extent's offset u64, class u8, day u32, crc32c u32), little-endian, in
files `renewals-N`; the highest N that is there counts, then those before it. A torn record ends
its file. Losing the newest second of it costs days of keeping, never bytes.
"""

import logging
import struct
from collections.abc import Iterable
from typing import Final

from diptych.kvcache_store.retention import CODES, Kept, later
from diptych.kvcache_store.volume import Appender, Volume, VolumeFull
from diptych.transport.frames import checksum

PREFIX: Final = "renewals-"
_RECORD: Final = struct.Struct("<QQBI")
_CRC: Final = struct.Struct("<I")
_SIZE: Final = _RECORD.size + _CRC.size
_CLASSES: Final = {code: retention for retention, code in CODES.items()}

Place = tuple[int, int]  # segment id, offset of the extent

log = logging.getLogger(__name__)


class Renewals:
    """Reads the old journals once, then writes a new one. Its caller locks `note` and `take`."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._pending: list[bytes] = []
        self._appender: Appender | None = None
        self._name = ""
        self.size_bytes = 0

    def load(self) -> dict[Place, Kept]:
        """What the journals say, the longest promise of each extent."""
        found: dict[Place, Kept] = {}
        for name in self._files():
            data = self._volume.read(name, 0, self._volume.size(name))
            for at in range(0, len(data) - _SIZE + 1, _SIZE):
                body = data[at : at + _RECORD.size]
                if _CRC.unpack_from(data, at + _RECORD.size)[0] != checksum(body):
                    break
                number, offset, code, day = _RECORD.unpack(body)
                kept, place = Kept(_CLASSES[code], day), (number, offset)
                found[place] = later(found.get(place, kept), kept)
        return found

    def begin(self, still: Iterable[tuple[Place, Kept]]) -> None:
        """A new journal with what still counts; the old ones go."""
        old = self._files()
        number = 1 + max((int(name.removeprefix(PREFIX)) for name in old), default=0)
        self.close()
        self._name = f"{PREFIX}{number:08d}"
        self._appender = self._volume.create(self._name)
        self.size_bytes = 0
        for place, kept in still:
            self.note(place, kept)
        self.write(self.take())
        for name in old:
            self._volume.remove(name)

    def note(self, place: Place, kept: Kept) -> None:
        """Remember a promise for the next `take`."""
        body = _RECORD.pack(*place, CODES[kept.retention], kept.day)
        self._pending.append(body + _CRC.pack(checksum(body)))

    def take(self) -> bytes:
        """What was noted since the last time."""
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    def write(self, data: bytes) -> None:
        """Append what was taken; on a full volume it is lost."""
        if self._appender is None or not data:
            return
        try:
            self._appender.append([data])
        except VolumeFull:
            log.warning("renewals lost records=%d why=volume_full", len(data) // _SIZE)
        else:
            self.size_bytes += len(data)

    def close(self) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def _files(self) -> list[str]:
        return sorted(n for n in self._volume.names() if n.startswith(PREFIX))
