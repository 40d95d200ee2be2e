"""Who is a member: whoever reports. Each router has its own registry, its Report streams."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from diptych.core.ids import Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.messages import Join, Load

SILENCE_LIMIT_S = 5.0  # reports come every second at least


@dataclass(frozen=True, slots=True)
class Record:
    """A member and its last word. `stream` tells two streams of one member apart."""

    join: Join
    load: Load
    stream: int
    joined_s: float
    reported_s: float

    @property
    def rank(self) -> Rank:
        return Rank(WorkerId(self.join.member_id), self.join.address, self.join.incarnation)


class Registry(Protocol):
    """Where members announce themselves and others watch them."""

    def announce(self, record: Record) -> None:
        """Add a member, or replace its record."""
        ...

    def withdraw(self, member_id: str, stream: int) -> None:
        """Remove a member, unless a newer stream has replaced it."""
        ...

    def watch(self, on_change: Callable[[str, Record | None], None]) -> None:
        """Call with every change of membership: (member, None when it is gone)."""
        ...


class StreamRegistry:
    """Members as one router knows them, from their Report streams; all report to every router."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._watchers: list[Callable[[str, Record | None], None]] = []
        self.is_blind = False  # nobody is heard: that is our trouble, not everybody's
        self._looked_s = 0.0

    def announce(self, record: Record) -> None:
        """A newer stream of the same member replaces the older one."""
        member_id = record.join.member_id
        if member_id in self._records:
            self._tell(member_id, None)
        self._records[member_id] = record
        self._tell(member_id, record)

    def report(self, member_id: str, stream: int, load: Load, now_s: float) -> bool:
        """Keep a member's load; False if this stream has no say any more."""
        record = self._records.get(member_id)
        if record is None or record.stream != stream:
            return False
        self._records[member_id] = replace(record, load=load, reported_s=now_s)
        return True

    def withdraw(self, member_id: str, stream: int) -> None:
        record = self._records.get(member_id)
        if record is not None and record.stream == stream:
            del self._records[member_id]
            self._tell(member_id, None)

    def watch(self, on_change: Callable[[str, Record | None], None]) -> None:
        self._watchers.append(on_change)

    def records(self) -> list[Record]:
        return list(self._records.values())

    def find(self, member_id: str) -> Record | None:
        return self._records.get(member_id)

    def drop_silent(self, now_s: float) -> list[Record]:
        """Remove and return members that said nothing for too long.

        If all workers fall silent at once nobody is removed: their streams live, so what failed is
        what carries the reports, and the router's own ledger goes on.
        """
        self._looked_s = now_s
        silent = [r for r in self.records() if now_s - r.reported_s >= SILENCE_LIMIT_S]
        workers = [r for r in self.records() if r.join.role is not Role.GATEWAY]
        self.is_blind = len(workers) > 1 and all(r in silent for r in workers)
        if self.is_blind:
            return []
        for record in silent:
            self.withdraw(record.join.member_id, record.stream)
        return silent

    def next_silence_s(self) -> float | None:
        """When the next member would be silent for too long."""
        if self.is_blind:
            return self._looked_s + 1.0
        times = [record.reported_s + SILENCE_LIMIT_S for record in self._records.values()]
        return min(times, default=None)

    def _tell(self, member_id: str, record: Record | None) -> None:
        for on_change in self._watchers:
            on_change(member_id, record)
