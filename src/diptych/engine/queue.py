"""Who is admitted next: classes, fairness between tenants, ageing. The time is an argument.

Inside a class requests are ordered by start tags (start-time fair queueing): a request starts, in
virtual time, where its tenant's previous one ends or where the class is now, whichever is later,
and it takes as long as its work. So a tenant with a thousand requests waiting delays another's
first by one. Requests of one tenant go in order of arrival.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest

from diptych.core.ids import Key
from diptych.core.request import PRIORITIES, Generation
from diptych.engine.requests import Request

TENANTS_MAX = 4096  # whose last work is remembered, in each class; the least of it is forgotten

_DECODE_WEIGHT = 4  # a token of output costs as much as so many of a prompt
_DECODE_TOKENS = 256  # output that is expected of a request that allows more


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the queue, and how it stands there."""

    request: Request
    rank: int  # the class it has by now: 0 is the most urgent
    start: float  # in virtual time of its class
    since_s: float  # when it came to this class
    bypassed: int = 0  # times that it did not fit and one behind it did

    @property
    def place(self) -> tuple[float, int]:
        return self.start, self.request.order


class Lane:
    """Requests of one class, in order."""

    def __init__(self) -> None:
        self.virtual = 0.0  # the start of the latest request that was admitted
        self.ageing: list[tuple[float, int, Entry]] = []  # a heap: the oldest first; some have left
        self._puts = 0
        self._ends: dict[str, float] = {}  # by tenant
        self._order: list[tuple[float, int, Entry]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in self._order)

    def start_of(self, tenant: str, cost: float) -> float:
        """The start tag of a tenant's next request."""
        start = max(self.virtual, self._ends.get(tenant, 0.0))
        self._ends[tenant] = start + cost
        if len(self._ends) > TENANTS_MAX:
            latest = nlargest(TENANTS_MAX // 2, self._ends.items(), key=lambda item: item[1])
            self._ends = dict(latest)
        return start

    def put(self, entry: Entry) -> None:
        insort(self._order, (*entry.place, entry))
        if entry.rank:
            self._puts += 1
            heappush(self.ageing, (entry.since_s, self._puts, entry))

    def take(self, entry: Entry) -> None:
        at = bisect_left(self._order, entry.place, key=lambda item: item[:2])
        assert self._order[at][2] is entry
        del self._order[at]
        if not self._order and self._ends:  # all start anew, where the last one of them ends
            self.virtual = max(self.virtual, *self._ends.values())
            self._ends.clear()


class Queue:
    """Requests that wait for pages: new ones, and those that were preempted."""

    def __init__(self, class_limits_s: tuple[float, ...]) -> None:
        """`class_limits_s`: how long a request stays in each class before it moves up one."""
        self._limits_s = class_limits_s
        self._lanes = tuple(Lane() for _ in PRIORITIES)
        self._entries: dict[Key, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Request]:
        return (entry.request for entry in self._entries.values())

    @property
    def num_by_class(self) -> tuple[int, ...]:
        """How many wait in each of PRIORITIES; those that have aged wait above their own."""
        return tuple([len(lane) for lane in self._lanes])

    def arrive(self, request: Request, now_s: float) -> Entry:
        """The place of a new request, behind what its class and tenant have; not taken yet."""
        rank = request.rank
        start = self._lanes[rank].start_of(request.generation.tenant, cost(request.generation))
        return Entry(request, rank, start, now_s)

    def enter(self, entry: Entry) -> None:
        """Take a place, now or as soon as the request is ready to wait for pages."""
        assert entry.request.key not in self._entries
        self._entries[entry.request.key] = entry
        self._lanes[entry.rank].put(entry)

    def put_back(self, request: Request, now_s: float) -> None:
        """A preempted request, in front of all that are new in its class."""
        self.enter(Entry(request, request.rank, -math.inf, now_s))

    def find(self, key: Key) -> Entry | None:
        """How a request stands here."""
        return self._entries.get(key)

    def pop(self, key: Key) -> Request | None:
        """A request that leaves unadmitted; None if it is not here."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._lanes[entry.rank].take(entry)
        return entry.request

    def admit(self, entry: Entry) -> None:
        """A request got pages."""
        self.pop(entry.request.key)
        entry.request.rank = entry.rank
        lane = self._lanes[entry.rank]
        lane.virtual = max(lane.virtual, entry.start)

    def in_order(self, now_s: float) -> Iterator[Entry]:
        """All that wait, the next one first. To be left before the queue changes."""
        self._age(now_s)
        for lane in self._lanes:
            yield from lane

    def _age(self, now_s: float) -> None:
        """Move up who has waited for long: to where the class above is now, ahead of its future."""
        for rank in range(1, len(self._lanes)):
            lane, above = self._lanes[rank], self._lanes[rank - 1]
            while lane.ageing:
                entry = lane.ageing[0][2]
                is_here = self._entries.get(entry.request.key) is entry and entry.rank == rank
                if is_here and now_s - entry.since_s < self._limits_s[rank]:
                    break
                heappop(lane.ageing)
                if is_here:
                    lane.take(entry)
                    entry.rank, entry.since_s = rank - 1, now_s
                    if entry.start > -math.inf:
                        entry.start = above.virtual
                    above.put(entry)


def cost(generation: Generation) -> float:
    """Work of a request, in tokens of a prompt."""
    output = min(generation.max_new - len(generation.forced), _DECODE_TOKENS)
    return len(generation.tokens) + _DECODE_WEIGHT * output
