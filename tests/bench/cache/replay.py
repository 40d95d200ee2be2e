"""A trace through a platform: hit tokens by tier, next to those of an infinite cache."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from asking import TIERS, Asker
from traces import GRAIN, InfiniteCache, Trace

from diptych.testing.platform import platform

KEEP = 16 + 12  # window and margin of the embedded model: always computed
AT_ONCE = 2
FLAGS = ("--prefill", "2", "--decode", "1", "--num-blocks", "256")  # 8,192 tokens a worker
STORE_MEMORY_BYTES = 16 << 20


@dataclass(frozen=True)
class Replayed:
    """What became of a trace's prompt tokens."""

    trace: str
    is_deterministic: bool
    requests: int
    tokens: int
    ideal: int
    hits: dict[str, int]  # by tier
    took_s: float

    @property
    def share_of_ideal(self) -> float:
        return sum(self.hits.values()) / self.ideal if self.ideal else 1.0


async def replay(
    trace: Trace, folder: Path, *, is_deterministic: bool, within_s: float, step: Callable[[], None]
) -> Replayed:
    """In order, two at a time; whatever has not begun within the time is left out."""
    env = {
        "DIPTYCH_BLOCK_TOKENS": str(GRAIN),
        "DIPTYCH_DETERMINISTIC": str(is_deterministic).lower(),
        "DIPTYCH_CACHE_MEMORY_BYTES": str(STORE_MEMORY_BYTES),
    }
    ideal, cache = 0, InfiniteCache(KEEP)
    total: Counter[str] = Counter()
    with platform(folder, *FLAGS, env=env) as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=120) as client:
            asker = Asker(client)
            turn = asyncio.Semaphore(AT_ONCE)
            began_s = time.perf_counter()

            async def one(number: int) -> None:
                nonlocal ideal
                try:
                    tokens = await asker.tokens_of(trace.requests[number])
                    ideal += cache.hit(tokens)
                    answer = await asker.ask(trace.requests[number])
                finally:
                    turn.release()
                assert answer.prompt_tokens == len(tokens), "the prompt is not the one asked for"
                total.update(answer.tiers, requests=1, tokens=len(tokens))
                step()

            async with asyncio.TaskGroup() as group:
                for number in range(len(trace.requests)):
                    await turn.acquire()
                    if time.perf_counter() - began_s > within_s:
                        break
                    group.create_task(one(number))
            took_s = time.perf_counter() - began_s
    hits = {tier: total[tier] for tier in TIERS}
    counts = total["requests"], total["tokens"]
    return Replayed(trace.name, is_deterministic, *counts, ideal, hits, took_s)
