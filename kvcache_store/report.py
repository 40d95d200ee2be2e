"""What a store says about itself: to its operator, and to those who measure it."""

from dataclasses import dataclass
from typing import Protocol

from diptych.kvcache_store.ledger import Balance


@dataclass(frozen=True, slots=True)
class Account:
    """Live bytes on disk of a tenant and class, by days since they were last accessed."""

    tenant: str
    retention: str
    age_days: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PinRow:
    """A pin that holds."""

    owner: str
    reason: str
    parts: int
    left_s: float
    is_leaked: bool


@dataclass(frozen=True, slots=True)
class Stats:
    """A node at one moment. `disk` is None for a store of memory alone."""

    node: str
    accounts: tuple[Account, ...]
    disk: Balance | None
    memory_bytes: int
    memory_capacity: int
    memory_parts: int
    disk_parts: int
    queued_bytes: int
    counters: dict[str, int]
    pins: tuple[PinRow, ...]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment file."""

    name: str
    tenant: str
    retention: str
    day: int
    namespace: bytes
    parts: int
    live_bytes: int
    size_bytes: int
    is_growing: bool
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """What reading everything has shown."""

    read_bytes: int
    corrupt: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What a sweep has done."""

    moved_bytes: int
    freed_bytes: int


class Operator(Protocol):
    """What an operator may ask of a node, near or far."""

    async def stats(self) -> Stats: ...

    async def segments(self) -> list[SegmentRow]: ...

    async def verify(self) -> Verified: ...

    async def collect(self, *, foreign: bool) -> Collected: ...

    async def remove(self, tenant: str) -> str:
        """Delete a tenant everywhere; the receipt, JSON."""
        ...
