"""A client of the configured Redis, which several processes share; nothing depends on it to run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis

ANSWER_S = 1.0  # for all of a call, connecting included
CONNECT_S = 0.5


def connect(url: str) -> "Redis":
    """A client of the server at `url`; nothing is sent yet.

    It has no time limit of its own beyond connecting: callers hold `asyncio.timeout(ANSWER_S)`
    around each call. With `socket_timeout` set, redis-py writes under `asyncio.wait_for`, which on
    Python 3.11 forgets a cancellation that arrives as the write ends: the task would never end.
    """
    from redis.asyncio import Redis  # here: it brings a tracing SDK along
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
