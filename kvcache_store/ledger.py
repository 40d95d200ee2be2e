"""Who has how many live bytes on disk: by class, tenant and day of last access. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from diptych.kvcache_store.retention import Kept, Retention


@dataclass(frozen=True, slots=True)
class Balance:
    """A tier's bytes, each in exactly one place: capacity = live + dead + pinned + reserved + free.

    Pinned is what nothing may evict; reserved is for writes on their way and for moving.
    """

    capacity: int
    live: int
    dead: int
    pinned: int
    reserved: int

    @property
    def free(self) -> int:
        """Below 0 only between the moment a capacity was lowered and the next sweep."""
        return self.capacity - self.live - self.dead - self.pinned - self.reserved


class Ledger:
    """Live bytes, kept up to date by whoever adds, moves or forgets; may be asked meanwhile."""

    def __init__(self) -> None:
        self._bytes: Counter[tuple[bytes, Retention, int]] = Counter()

    def add(self, group: bytes, kept: Kept, size_bytes: int) -> None:
        """Count bytes; negative ones take back."""
        key = (group, kept.retention, kept.day)
        self._bytes[key] += size_bytes
        assert self._bytes[key] >= 0, "more was taken back than was there"
        if not self._bytes[key]:
            del self._bytes[key]

    @property
    def total(self) -> int:
        return self._bytes.total()

    def of_group(self, group: bytes) -> int:
        return sum(size for (owner, _, _), size in self._entries() if owner == group)

    def of_class(self, retention: Retention) -> int:
        return sum(size for (_, kind, _), size in self._entries() if kind is retention)

    def rows(self) -> Iterator[tuple[bytes, Kept, int]]:
        """(tenant's group, promise, bytes)."""
        for (group, retention, day), size in self._entries():
            yield group, Kept(retention, day), size

    def _entries(self) -> list[tuple[tuple[bytes, Retention, int], int]]:
        return list(self._bytes.items())  # at once, whichever thread adds
