"""One way to talk to Redis: short patience, no hidden retries, and a rest after a failure."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from diptych.core.errors import Overloaded
from diptych.transport.redis_client import ANSWER_S

Answer = TypeVar("Answer")

REST_S = 1.0  # after a failure nobody waits for it again so soon


class RedisAway(Overloaded):
    """The shared store does not answer."""


class Line:
    """Calls over one client; `num_failures` counts those that found nobody."""

    def __init__(self, client: "Redis", clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.num_failures = 0
        self._clock = clock
        self._resting_until_s = float("-inf")

    @property
    def is_resting(self) -> bool:
        """It failed a moment ago."""
        return self._clock() < self._resting_until_s

    async def call(self, ask: Callable[["Redis"], Awaitable[Answer]]) -> Answer:
        """The answer, or RedisAway."""
        if self.is_resting:
            self.num_failures += 1
            raise _away()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await ask(self.client)
        except (RedisError, OSError, TimeoutError) as error:
            self.num_failures += 1
            self._resting_until_s = self._clock() + REST_S
            raise _away() from error

    async def close(self) -> None:
        await self.client.aclose()


def text_of(value: Any) -> str:
    """What a client that decodes gives is text; its types do not know."""
    assert isinstance(value, str)
    return value


def _away() -> RedisAway:
    return RedisAway("the store of keys and limits does not answer", retry_after_s=2)
