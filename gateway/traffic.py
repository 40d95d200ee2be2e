"""Requests that generate now, whatever API they came by, and how they end when the server does."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from diptych.core.errors import Overloaded


class Traffic:
    """Counts them; drains."""

    def __init__(self, on_load: Callable[[], None] = lambda: None) -> None:
        self._on_load = on_load
        self._idle = asyncio.Event()
        self._idle.set()
        self.cut = asyncio.Event()
        """Set when whoever still runs shall end with an error."""
        self.is_draining = False
        self.num_running = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a request inside."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def check_open(self) -> None:
        """Overloaded if nothing new is taken."""
        if self.is_draining:
            raise shutting_down()

    async def drain(self, patience_s: float) -> None:
        """Take nothing new, let running answers end, and then end them with an error."""
        self.is_draining = True
        self._on_load()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        self.cut.set()

    def _count(self, change: int) -> None:
        self.num_running += change
        if self.num_running:
            self._idle.clear()
        else:
            self._idle.set()
        self._on_load()


def shutting_down() -> Overloaded:
    """What a request hears that comes too late, or runs too long."""
    return Overloaded("this server is shutting down", code="draining", retry_after_s=5)
