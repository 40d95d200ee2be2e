"""Time in tests: a clock that stands still, and waiting for a state from outside."""

import asyncio
from collections.abc import Callable


class FakeClock:
    """Call it for the time in seconds; it moves when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


async def settle(holds: Callable[[], bool], within_s: float = 3.0) -> None:
    """Return once `holds` is true; TimeoutError if it does not become so."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - a test watches a state that announces nothing
            await asyncio.sleep(0.005)
