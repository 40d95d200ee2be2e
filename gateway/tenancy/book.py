"""The limits of one gateway, in memory. The time is an argument of the book, so tests hold it.

A lease is one request. What it holds of places and quotas is given back when it settles, or when
it was not renewed for `LEASE_S`.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from diptych.gateway.tenancy.meters import Hold, Meter, Places, Quota, Rate, Reading, Taken

LEASE_S = 60
RENEW_S = 20
SWEEP_AT = 4096  # idle rates are forgotten when there are more

Spent = Callable[[Quota], Awaitable[int]]
Held = TypeVar("Held")


class Book(Protocol):
    """Takes and settles. `take` may be called more than once for a lease, for other meters."""

    async def take(self, lease: str, holds: Sequence[Hold]) -> Taken: ...

    async def settle(self, lease: str, holds: Sequence[Hold], units: Sequence[int]) -> None:
        """End the holds: `units` were used of each, in the order of `holds`."""

    async def renew(self, leases: dict[str, tuple[Hold, ...]]) -> None: ...

    async def close(self) -> None: ...


async def nothing_spent(quota: Quota) -> int:
    """A history of nothing."""
    return 0


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never go back, whoever sets the machine's clock."""
    start_s = time.time() - time.monotonic()
    return lambda: start_s + time.monotonic()


class MemoryBook:
    """A Book of one process."""

    def __init__(
        self, spent: Spent = nothing_spent, now_s: Callable[[], float] | None = None
    ) -> None:
        self._spent = spent
        self._now_s = now_s or steady_clock()
        self._full_at: dict[str, int] = {}
        self._places: dict[str, dict[str, int]] = {}  # meter -> lease -> lapses at, µs
        self._used: dict[str, int] = {}
        self._reserved: dict[str, dict[str, tuple[int, int]]] = {}  # -> lease -> (lapses, units)
        self._ends: dict[str, int] = {}  # quotas of the windows that run

    async def take(self, lease: str, holds: Sequence[Hold]) -> Taken:
        for hold in holds:
            if isinstance(hold.meter, Quota) and hold.meter.name not in self._used:
                await self._open(hold.meter)
        now_us = self._now_us()
        waits = [self._wait_us(hold.meter, hold.units, now_us) for hold in holds]
        worst = max(range(len(holds)), key=waits.__getitem__, default=None)
        refused = holds[worst].meter if worst is not None and waits[worst] else None
        if refused is None:
            for hold in holds:
                self._apply(lease, hold, now_us)
        readings = tuple(self._read(hold.meter, now_us) for hold in holds)
        return Taken(readings, refused, max(waits, default=0))

    async def settle(self, lease: str, holds: Sequence[Hold], units: Sequence[int]) -> None:
        now_us = self._now_us()
        for hold, used in zip(holds, units, strict=True):
            match hold.meter:
                case Rate(name) as rate:
                    full_at_us = max(self._full_at.get(name, 0), now_us)
                    self._full_at[name] = full_at_us + rate.cost_us(used) - rate.cost_us(hold.units)
                case Places(name):
                    _leave(self._places, name, lease)
                case Quota(name):
                    _leave(self._reserved, name, lease)
                    self._used[name] = self._used.get(name, 0) + used

    async def renew(self, leases: dict[str, tuple[Hold, ...]]) -> None:
        lapses_us = self._lapses_us(self._now_us())
        for lease, holds in leases.items():
            for hold in holds:
                name = hold.meter.name
                if lease in self._places.get(name, ()):
                    self._places[name][lease] = lapses_us
                if lease in self._reserved.get(name, ()):
                    self._reserved[name][lease] = lapses_us, hold.units

    async def close(self) -> None:
        pass

    @property
    def num_held(self) -> int:
        """Places and reservations of requests under way."""
        return sum(map(len, self._places.values())) + sum(map(len, self._reserved.values()))

    async def _open(self, quota: Quota) -> None:
        spent = await self._spent(quota)
        self._used.setdefault(quota.name, spent)  # a neighbour may have opened it meanwhile
        self._ends[quota.name] = quota.ends_s
        for name in [name for name, end_s in self._ends.items() if end_s <= self._now_s()]:
            if name != quota.name:
                del self._ends[name], self._used[name]
                self._reserved.pop(name, None)

    def _wait_us(self, meter: Meter, units: int, now_us: int) -> int:
        """0 if it may be taken now; for what only another request's end frees, a second."""
        match meter:
            case Rate(name):
                return meter.wait_us(self._full_at.get(name, 0), now_us, units)
            case Places(name, limit):
                held = self._places.get(name, {})
                for lease in [lease for lease, until in held.items() if until <= now_us]:
                    _leave(self._places, name, lease)
                return 0 if len(held) + units <= limit else 1_000_000
            case Quota(name, limit, ends_s):
                is_free = self._committed(name, now_us) + units <= limit
                return 0 if is_free else max(1, ends_s * 1_000_000 - now_us)

    def _apply(self, lease: str, hold: Hold, now_us: int) -> None:
        match hold.meter:
            case Rate(name) as rate:
                full_at_us = max(self._full_at.get(name, 0), now_us)
                self._full_at[name] = full_at_us + rate.cost_us(hold.units)
                if len(self._full_at) > SWEEP_AT:
                    self._full_at = {n: at for n, at in self._full_at.items() if at > now_us}
            case Places(name):
                self._places.setdefault(name, {})[lease] = self._lapses_us(now_us)
            case Quota(name):
                held = self._reserved.setdefault(name, {})
                held[lease] = self._lapses_us(now_us), hold.units

    def _read(self, meter: Meter, now_us: int) -> Reading:
        match meter:
            case Rate(name) as rate:
                full_at_us = self._full_at.get(name, 0)
                level_us = rate.level_us(full_at_us, now_us)
                return Reading(rate, rate.remaining(full_at_us, now_us), level_us)
            case Places(name, limit):
                return Reading(meter, limit - len(self._places.get(name, ())))
            case Quota(name, limit, ends_s):
                left = max(0, limit - self._committed(name, now_us))
                return Reading(meter, left, max(0, ends_s * 1_000_000 - now_us))

    def _committed(self, name: str, now_us: int) -> int:
        held = self._reserved.get(name, {})
        for lease in [lease for lease, (until, _) in held.items() if until <= now_us]:
            _leave(self._reserved, name, lease)
        return self._used[name] + sum(units for _, units in held.values())

    def _now_us(self) -> int:
        return int(self._now_s() * 1_000_000)

    def _lapses_us(self, now_us: int) -> int:
        return now_us + LEASE_S * 1_000_000


def _leave(held: dict[str, dict[str, Held]], name: str, lease: str) -> None:
    leases = held.get(name)
    if leases is not None:
        leases.pop(lease, None)
        if not leases:
            del held[name]
