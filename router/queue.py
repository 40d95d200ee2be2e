"""Requests that wait for a worker: first come, first served, each with a deadline."""

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """One waiting lease. A retry keeps the arrival of its first attempt."""

    arrived_s: float
    lease: int
    deadline_s: float


class Queue:
    """Leases in order of arrival; at most `limit`, so that a full house is refused early."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._order: list[Waiting] = []
        self._by_lease: dict[int, Waiting] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap; entries of the removed are skipped

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, lease: int) -> bool:
        return lease in self._by_lease

    def __iter__(self) -> Iterator[Waiting]:
        """Oldest first, over a copy: leases may be removed on the way."""
        return iter(tuple(self._order))

    @property
    def is_full(self) -> bool:
        return len(self._order) >= self.limit

    def push(self, waiting: Waiting) -> None:
        """Let a lease wait. A lease waits once."""
        assert waiting.lease not in self._by_lease, f"lease {waiting.lease} waits already"
        insort(self._order, waiting)
        self._by_lease[waiting.lease] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline_s, waiting.lease))

    def remove(self, lease: int) -> None:
        """Forget a lease; nothing if it does not wait."""
        waiting = self._by_lease.pop(lease, None)
        if waiting is not None:
            self._order.remove(waiting)

    def ahead_of(self, lease: int) -> int:
        """How many wait before it."""
        return self._order.index(self._by_lease[lease])

    def next_deadline_s(self) -> float | None:
        """When the next of them runs out of time."""
        while self._deadlines:
            deadline_s, lease = self._deadlines[0]
            waiting = self._by_lease.get(lease)
            if waiting is not None and waiting.deadline_s == deadline_s:
                return deadline_s
            heapq.heappop(self._deadlines)
        return None

    def expire(self, now_s: float) -> list[Waiting]:
        """Remove and return those whose deadline has passed."""
        late = []
        while (deadline_s := self.next_deadline_s()) is not None and deadline_s <= now_s:
            waiting = self._by_lease[heapq.heappop(self._deadlines)[1]]
            self.remove(waiting.lease)
            late.append(waiting)
        return late
