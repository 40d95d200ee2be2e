"""Requests that wait for a worker, each with a deadline: in order of arrival, or by fair shares.

Fair: the most urgent class first; inside a class tenants take turns by the milliseconds that their
requests are expected to cost, and requests of one tenant come in order of arrival. A tenant's next
request starts where the milliseconds served to it so far end (start-time fair queueing: the shares
of deficit round robin without its rounds), and who comes back after a pause has saved nothing up.
Who waits longer than its class may becomes one class more urgent, again and again.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

URGENT, NORMAL, BATCH = range(3)
AGEING_S = (inf, 30.0, 120.0)  # in each class, before the next one


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """One waiting lease. A retry keeps the arrival of its first attempt."""

    arrived_s: float
    lease: int
    deadline_s: float
    level: int = field(default=NORMAL, compare=False)
    tenant: str = field(default="", compare=False)
    cost_ms: float = field(default=0.0, compare=False)


class Queue:
    """Leases in order of arrival; at most `limit`, so that a full house is refused early."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_lease: dict[int, Waiting] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap; entries of the removed are skipped
        self._order: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._by_lease)

    def __contains__(self, lease: int) -> bool:
        return lease in self._by_lease

    def __iter__(self) -> Iterator[Waiting]:
        """Oldest first, over a copy: leases may be removed on the way."""
        return iter(tuple(self._order))

    @property
    def is_full(self) -> bool:
        return len(self._by_lease) >= self.limit

    def push(self, waiting: Waiting) -> None:
        """Let a lease wait. A lease waits once."""
        assert waiting.lease not in self._by_lease, f"lease {waiting.lease} waits already"
        self._by_lease[waiting.lease] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline_s, waiting.lease))
        self._insert(waiting)

    def remove(self, lease: int) -> None:
        """Forget a lease; nothing if it does not wait."""
        waiting = self._by_lease.pop(lease, None)
        if waiting is not None:
            self._take_out(waiting)

    def ahead_of(self, lease: int) -> int:
        """How many wait before it."""
        return next(i for i, waiting in enumerate(self) if waiting.lease == lease)

    def oldest_s(self) -> float | None:
        """When the one that waits longest arrived."""
        return min((waiting.arrived_s for waiting in self._by_lease.values()), default=None)

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

    def _insert(self, waiting: Waiting) -> None:
        insort(self._order, waiting)

    def _take_out(self, waiting: Waiting) -> None:
        self._order.remove(waiting)


@dataclass(slots=True)
class _Share:
    """A tenant in one class: who waits, and where in the class's milliseconds it stands."""

    waiting: list[Waiting] = field(default_factory=list)
    served_ms: float = 0.0


@dataclass(slots=True)
class _Level:
    """One class. Its clock is the start of the request served last."""

    clock_ms: float = 0.0
    shares: dict[str, _Share] = field(default_factory=dict)

    def order(self) -> Iterator[Waiting]:
        heads = [
            (share.served_ms, share.waiting[0], 0, tenant)
            for tenant, share in self.shares.items()
            if share.waiting
        ]
        heapq.heapify(heads)
        while heads:
            start_ms, waiting, at, tenant = heapq.heappop(heads)
            yield waiting
            others = self.shares[tenant].waiting
            if at + 1 < len(others):
                following = (start_ms + waiting.cost_ms, others[at + 1], at + 1, tenant)
                heapq.heappush(heads, following)


class FairQueue(Queue):
    """The same by classes and fair shares of tenants."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._levels = [_Level() for _ in AGEING_S]
        self._level_of: dict[int, int] = {}  # after ageing
        self._ageing: list[tuple[float, int]] = []  # heap; entries of the removed are skipped

    def __iter__(self) -> Iterator[Waiting]:
        """Who is next first. Ends when a lease is removed on the way: ask anew."""
        for level in self._levels:
            yield from level.order()

    def serve(self, lease: int) -> None:
        """Remove a lease that got its worker, and charge its tenant."""
        waiting, level = self._by_lease[lease], self._levels[self._level_of[lease]]
        share = level.shares[waiting.tenant]
        level.clock_ms = max(level.clock_ms, share.served_ms)
        share.served_ms += waiting.cost_ms
        self.remove(lease)

    def age(self, now_s: float) -> None:
        """Make those more urgent who have waited too long for their class."""
        while self._ageing and self._ageing[0][0] <= now_s:
            due_s, lease = heapq.heappop(self._ageing)
            waiting = self._by_lease.get(lease)
            if waiting is None or due_s != self._due_s(waiting, self._level_of[lease]):
                continue
            self._take_out(waiting)
            self._insert_at(waiting, self._level_of.pop(lease) - 1)

    def ahead_ms(self, lease: int) -> float:
        """What those before it are expected to cost."""
        cost_ms = 0.0
        for waiting in self:
            if waiting.lease == lease:
                break
            cost_ms += waiting.cost_ms
        return cost_ms

    def cost_ms(self, lease: int) -> float:
        """What it is expected to cost."""
        return self._by_lease[lease].cost_ms

    def remove(self, lease: int) -> None:
        super().remove(lease)
        self._level_of.pop(lease, None)

    def _insert(self, waiting: Waiting) -> None:
        self._insert_at(waiting, min(max(waiting.level, URGENT), BATCH))

    def _insert_at(self, waiting: Waiting, number: int) -> None:
        level = self._levels[number]
        share = level.shares.setdefault(waiting.tenant, _Share())
        if not share.waiting:
            share.served_ms = max(share.served_ms, level.clock_ms)
        insort(share.waiting, waiting)
        self._level_of[waiting.lease] = number
        if number:
            heapq.heappush(self._ageing, (self._due_s(waiting, number), waiting.lease))

    def _take_out(self, waiting: Waiting) -> None:
        level = self._levels[self._level_of[waiting.lease]]
        share = level.shares[waiting.tenant]
        share.waiting.remove(waiting)
        if not share.waiting and share.served_ms <= level.clock_ms:
            del level.shares[waiting.tenant]
            return
        if len(level.shares) > 2 * self.limit:  # of those who left with a debt
            level.shares = {t: s for t, s in level.shares.items() if s.waiting}

    @staticmethod
    def _due_s(waiting: Waiting, number: int) -> float:
        """When it becomes more urgent than this: its waits in all classes so far are over."""
        first = min(max(waiting.level, URGENT), BATCH)
        return waiting.arrived_s + sum(AGEING_S[number : first + 1])
