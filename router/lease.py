"""A placed request, as its gateway holds it: what the router says, and what it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from diptych.core.errors import DiptychError, Lost, Overloaded
from diptych.core.phases import Phase
from diptych.router import wire
from diptych.router.messages import (
    Again,
    Ended,
    Have,
    Leave,
    Opened,
    Placement,
    Progress,
    RefusedBy,
    Want,
)
from diptych.transport.errors import make

Say = Callable[[wire.PlaceUp], None]


class Lease:
    """One placed request; it lives until `close` or the router's end.

    Iterate for what the router says about the current attempt; answers to older attempts are
    dropped. Raises Overloaded when refused (code `no_capacity` or `queue_timeout`), Lost when the
    router is gone. Only `RouterClient.place` makes one.
    """

    def __init__(self, want: Want, say: Say) -> None:
        self._attempt = want.attempt
        self._say = say
        self._downs: asyncio.Queue[wire.PlaceDown] = asyncio.Queue()
        self._heard = asyncio.Event()
        self._error: DiptychError | None = None
        self._is_closed = False
        say(want)

    async def opened(self) -> None:
        """Wait until the router has it; whatever ended it before."""
        await self._heard.wait()
        if self._error is not None:
            raise self._error

    def hear(self, down: wire.PlaceDown) -> None:
        """The router says so."""
        if isinstance(down, Ended):
            self.lost(make(down.kind, down.code, down.message))
            return
        self._downs.put_nowait(down)
        self._heard.set()

    def lost(self, error: DiptychError) -> None:
        """It is over; who iterates hears what was said before."""
        self._error = error
        self._downs.put_nowait(Opened())  # wakes who waits
        self._heard.set()

    def __aiter__(self) -> AsyncIterator[Placement]:
        return self

    async def __anext__(self) -> Placement:
        while not self._is_closed:
            if self._error is not None and self._downs.empty():
                raise self._error
            down = await self._downs.get()
            if isinstance(down, Opened | Ended) or down.attempt < self._attempt:
                continue
            if isinstance(down, RefusedBy):
                raise Overloaded(down.message, code=down.code, retry_after_s=down.retry_after_s)
            return down
        raise StopAsyncIteration

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        """Tell how far the attempt is; with `last_chunk_started` the router answers DecodeAt."""
        self._say(Progress(phase, tokens, last_chunk_started))

    async def again(
        self,
        attempt: int,
        failed_worker: str,
        why: str,
        have: Have,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None:
        """Open the next attempt; `code` and `kind` are those of the error that ended the last one.

        `partner`: whose KV the failed worker could not fetch.
        """
        self._attempt = attempt
        self._say(Again(attempt, failed_worker, why, have, code, kind, partner))

    async def close(self) -> None:
        """End the lease; the router forgets the request. Twice is once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._say(Leave())
        self.lost(Lost("the lease was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()
