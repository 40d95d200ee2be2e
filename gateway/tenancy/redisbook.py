"""The limits of several gateways, in Redis: one script a request, on the store's clock.

When Redis is away the door neither opens nor closes: each gateway grants its share of every limit,
limit / gateways, from memory, and counts that it did (`num_alone`).
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diptych.gateway.tenancy.book import LEASE_S, MemoryBook
from diptych.gateway.tenancy.meters import Hold, Meter, Places, Quota, Rate, Reading, Taken
from diptych.gateway.tenancy.redisline import Line, RedisAway

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("book.lua")


class RedisBook:
    """A Book that all gateways share."""

    def __init__(
        self,
        line: Line,
        num_gateways: Callable[[], int],
        now_us: Callable[[], int] = lambda: 0,  # 0: Redis says what time it is
    ) -> None:
        self._line = line
        self._run = line.client.register_script(_SCRIPT.read_text())
        self._num_gateways = num_gateways
        self._now_us = now_us
        self._alone = MemoryBook()
        self._alone_leases: set[tuple[str, str]] = set()  # lease, meter: taken from memory
        self.num_alone = 0

    async def take(self, lease: str, holds: Sequence[Hold]) -> Taken:
        if not holds:
            return Taken(())
        try:
            answer = await self._call("take", lease, holds, [str(hold.units) for hold in holds])
        except RedisAway:
            return await self._take_alone(lease, holds)
        worst, wait_us, *numbers = (int(number) for number in answer)
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        readings = tuple(
            Reading(hold.meter, *pair) for hold, pair in zip(holds, pairs, strict=True)
        )
        return Taken(readings, holds[worst - 1].meter if worst else None, wait_us)

    async def settle(self, lease: str, holds: Sequence[Hold], units: Sequence[int]) -> None:
        """In Redis, or where it was taken. If Redis is away now, the lease lapses there."""
        shared: list[tuple[Hold, int]] = []
        own: list[tuple[Hold, int]] = []
        for hold, used in zip(holds, units, strict=True):
            is_own = (lease, hold.meter.name) in self._alone_leases
            (own if is_own else shared).append((hold, used))
        if own:
            self._alone_leases -= {(lease, hold.meter.name) for hold, _ in own}
            shares = [Hold(self._share(hold.meter), hold.units) for hold, _ in own]
            await self._alone.settle(lease, shares, [used for _, used in own])
        if shared:
            try:
                texts = [f"{hold.units}|{used}" for hold, used in shared]
                await self._call("settle", lease, [hold for hold, _ in shared], texts)
            except RedisAway:
                log.warning("not settled: Redis is away, the lease lapses there")

    async def renew(self, leases: dict[str, tuple[Hold, ...]]) -> None:
        await self._alone.renew(leases)
        for lease, holds in leases.items():
            try:
                if holds:
                    await self._call("renew", lease, holds, ["0"] * len(holds))
            except RedisAway:
                return

    async def close(self) -> None:
        await self._line.close()

    async def _take_alone(self, lease: str, holds: Sequence[Hold]) -> Taken:
        if not self.num_alone:
            log.warning("Redis is away: each gateway grants its share of every limit")
        self.num_alone += 1
        shares = [Hold(self._share(hold.meter), hold.units) for hold in holds]
        taken = await self._alone.take(lease, shares)
        if taken.refused is None:
            self._alone_leases |= {(lease, hold.meter.name) for hold in holds}
        readings = tuple(
            dataclasses.replace(reading, meter=hold.meter)
            for reading, hold in zip(taken.readings, holds, strict=True)
        )
        return dataclasses.replace(taken, readings=readings)

    def _share(self, meter: Meter) -> Meter:
        return dataclasses.replace(meter, limit=max(1, meter.limit // max(1, self._num_gateways())))

    async def _call(
        self, verb: str, lease: str, holds: Sequence[Hold], texts: Sequence[str]
    ) -> Any:
        keys = [hold.meter.name for hold in holds]
        arguments: list[str | int] = [verb, lease, self._now_us(), LEASE_S * 1_000_000]
        for hold, text in zip(holds, texts, strict=True):
            arguments += [*_spell(hold.meter), text]
        return await self._line.call(lambda client: self._run(keys, arguments, client))


def _spell(meter: Meter) -> tuple[str, int, int]:
    match meter:
        case Rate(_, limit, period_us):
            return "rate", limit, period_us
        case Places(_, limit):
            return "places", limit, 0
        case Quota(_, limit, ends_s):
            return "quota", limit, ends_s * 1_000_000
