"""Keys in Redis, for gateways on several machines.

Read through a cache: fresh for 30 s, cleared by every change that another gateway announces, and
used for five minutes more when Redis is away. A key that is not in the cache is refused then.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from redis.exceptions import RedisError, WatchError

from diptych.gateway.tenancy.keys import ApiKey, Change, Limits
from diptych.gateway.tenancy.redisline import Line, RedisAway, text_of
from diptych.transport.redis_client import ANSWER_S

KEYS = "diptych:keys"
TENANTS = "diptych:tenants"
CHANGES = "diptych:keys:changed"
FRESH_S = 30.0
STALE_S = 300.0
LISTEN_AGAIN_S = 1.0
SILENCE_S = 5.0  # of Redis, which is greeted twice in that time
MAX_CACHED = 65_536


class RedisKeys:
    """A KeyStore shared by all gateways. `listen` must run for changes to count at once."""

    def __init__(
        self,
        line: Line,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`silence_s`: after so much of it changes are listened for on another connection."""
        self._line = line
        self._clock = clock
        self._silence_s = silence_s
        self._cache: dict[tuple[str, str], tuple[float, str | None]] = {}
        self._has_any = False
        self._num_changes = 0
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Hear of changes from now on."""
        self._listening = asyncio.create_task(self._listen())

    async def find(self, key_id: str) -> ApiKey | None:
        record = await self._read(KEYS, key_id)
        return None if record is None else ApiKey.from_json(json.loads(record))

    async def has_any(self) -> bool:
        if not self._has_any:
            self._has_any = bool(await self._line.call(lambda redis: redis.exists(KEYS)))
        return self._has_any

    async def all(self) -> list[ApiKey]:
        records = await self._line.call(lambda redis: redis.hgetall(KEYS))
        keys = [ApiKey.from_json(json.loads(record)) for record in records.values()]
        return sorted(keys, key=lambda key: (key.created_s, key.id))

    async def add(self, key: ApiKey) -> None:
        await self._write(KEYS, key.id, json.dumps(key.to_json()))

    async def update(self, key_id: str, change: Change) -> ApiKey | None:
        return await self._line.call(lambda redis: self._update(redis, key_id, change))

    async def tenant_limits(self, tenant: str) -> Limits:
        record = await self._read(TENANTS, tenant)
        return Limits() if record is None else Limits(**json.loads(record))

    async def tenants(self) -> dict[str, Limits]:
        records = await self._line.call(lambda redis: redis.hgetall(TENANTS))
        named = sorted((text_of(name), record) for name, record in records.items())
        return {name: Limits(**json.loads(record)) for name, record in named}

    async def set_tenant_limits(self, tenant: str, limits: Limits) -> None:
        await self._write(TENANTS, tenant, json.dumps(asdict(limits)))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        await self._line.close()

    async def _read(self, table: str, name: str) -> str | None:
        found = self._cache.get((table, name))
        now_s = self._clock()
        if found is not None and now_s - found[0] < FRESH_S:
            return found[1]
        num_changes = self._num_changes
        try:
            record = await self._line.call(lambda redis: redis.hget(table, name))
        except RedisAway:
            if found is not None and now_s - found[0] < FRESH_S + STALE_S:
                return found[1]
            raise
        record = None if record is None else text_of(record)
        is_current = num_changes == self._num_changes  # else it may be what was before the change
        if is_current and (record is not None or table == TENANTS):
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[table, name] = now_s, record
        return record

    async def _write(self, table: str, name: str, record: str) -> None:
        async def write(redis: Any) -> None:
            await redis.hset(table, name, record)
            await redis.publish(CHANGES, name)

        await self._line.call(write)
        self._drop(name)

    async def _update(self, redis: Any, key_id: str, change: Change) -> ApiKey | None:
        async with redis.pipeline() as pipe:
            while True:
                await pipe.watch(KEYS)
                record = await pipe.hget(KEYS, key_id)
                if record is None:
                    return None
                changed = change(ApiKey.from_json(json.loads(record)))
                pipe.multi()
                pipe.hset(KEYS, key_id, json.dumps(changed.to_json()))
                pipe.publish(CHANGES, key_id)
                with contextlib.suppress(WatchError):  # somebody was faster: again, on theirs
                    await pipe.execute()
                    self._drop(key_id)
                    return changed

    async def _listen(self) -> None:
        """Drop what changed. Whatever was said while nobody listened is unknown: drop all."""
        while True:
            try:
                async with self._line.client.pubsub() as channel:
                    async with asyncio.timeout(ANSWER_S):
                        await channel.subscribe(CHANGES)
                    await self._hear(channel)
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(LISTEN_AGAIN_S)

    async def _hear(self, channel: Any) -> None:
        """What is said, until nothing is: a connection may die without a word."""
        loop = asyncio.get_running_loop()
        greeting = asyncio.create_task(self._greet(channel))
        try:
            async with asyncio.timeout(self._silence_s) as silence:
                async for message in channel.listen():
                    silence.reschedule(loop.time() + self._silence_s)
                    match message["type"]:
                        case "subscribe":
                            self._forget_freshness()
                        case "message":
                            self._drop(message["data"])
        finally:
            greeting.cancel()
            await asyncio.gather(greeting, return_exceptions=True)

    async def _greet(self, channel: Any) -> None:
        while True:
            await asyncio.sleep(self._silence_s / 2)
            await channel.ping()

    def _drop(self, name: str) -> None:
        self._num_changes += 1
        for table in (KEYS, TENANTS):
            self._cache.pop((table, name), None)

    def _forget_freshness(self) -> None:
        """Ask again for everything, but keep it for when nobody answers."""
        self._num_changes += 1
        self._cache = {name: (at_s - FRESH_S, r) for name, (at_s, r) in self._cache.items()}
