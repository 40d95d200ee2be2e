"""Totals of all gateways in Redis. Records stay with the gateway that served them, in SQLite."""

import json
from collections.abc import Sequence
from functools import partial

from redis.asyncio import Redis

from diptych.gateway.tenancy.meters import Quota
from diptych.gateway.tenancy.redisline import Line, text_of
from diptych.gateway.tenancy.usage import COUNTS, GroupBy, Record, Total, UsageStore, counts_of

TOTALS = "diptych:usage:"  # + day -> hash of counts by [key, tenant, model, count]
SEEN = "diptych:usage:seen:"
LAST_USED = "diptych:usage:last_used"
SEEN_S = 86_400  # a record that comes again later than that would be counted again
KEPT_S = 400 * 86_400

# KEYS: totals of the day, mark of the request, last uses. ARGV: key, minute, seconds to keep the
# mark and the totals, then pairs of field and count.
_COUNT = """
if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[3]) then return 0 end
for i = 5, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', KEYS[1], ARGV[4])
local last = tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or '0')
if tonumber(ARGV[2]) > last then redis.call('HSET', KEYS[3], ARGV[1], ARGV[2]) end
return 1
"""


class RedisUsage:
    """A UsageStore whose totals all gateways share."""

    def __init__(self, line: Line, own: UsageStore) -> None:
        self._line = line
        self._own = own
        self._count = line.client.register_script(_COUNT)

    async def add(self, records: Sequence[Record]) -> None:
        """Raises RedisAway before all are counted there: then add them all again."""
        await self._own.add(records)
        for record in records:
            owner = [record.key_id, record.tenant, record.model]
            minute = int(record.began_s // 60 * 60)
            arguments: list[str | int] = [record.key_id, minute, SEEN_S, KEPT_S]
            for name, count in zip(COUNTS, counts_of(record), strict=True):
                if count:
                    arguments += [json.dumps([*owner, name]), count]
            keys = [TOTALS + record.day, SEEN + record.request_id, LAST_USED]
            await self._line.call(partial(self._count, keys, arguments))

    async def totals(self, first_day: str, last_day: str, group_by: GroupBy) -> list[Total]:
        sums: dict[str, dict[str, int]] = {}
        for day in await self._days(first_day, last_day):
            counts = await self._line.call(partial(_read, name=TOTALS + day))
            for field, count in counts.items():
                key_id, tenant, model, name = json.loads(field)
                names = {"key": key_id, "tenant": tenant, "model": model, "day": day}
                group = sums.setdefault(names[group_by], dict.fromkeys(COUNTS, 0))
                group[name] += int(count)
        return [Total(name, *counts.values()) for name, counts in sorted(sums.items())]

    async def spent(self, quota: Quota) -> int:
        """Never asked: quotas of several gateways are counted in Redis itself."""
        return await self._own.spent(quota)

    async def last_used(self) -> dict[str, float]:
        minutes = await self._line.call(partial(_read, name=LAST_USED))
        return {key_id: float(minute) for key_id, minute in minutes.items()}

    async def forget(self, *, key_id: str = "", user_hash: str = "") -> int:
        return await self._own.forget(key_id=key_id, user_hash=user_hash)

    async def expire(self, before_s: float) -> int:
        return await self._own.expire(before_s)

    async def close(self) -> None:
        await self._own.close()
        await self._line.close()

    async def _days(self, first_day: str, last_day: str) -> list[str]:
        async def scan(redis: Redis) -> list[str]:
            names = redis.scan_iter(match=TOTALS + "2*", count=1000)
            return sorted([str(name).removeprefix(TOTALS) async for name in names])

        days = await self._line.call(scan)
        return [day for day in days if first_day <= day <= last_day]


async def _read(redis: "Redis", name: str) -> dict[str, str]:
    return {text_of(field): text_of(value) for field, value in (await redis.hgetall(name)).items()}
