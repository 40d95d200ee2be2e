"""The router's front door: place requests, report load, ask who is there."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType

from diptych.core.phases import Phase
from diptych.router.messages import (
    DecodeAt,
    Fleet,
    Have,
    Join,
    Load,
    Member,
    Placement,
    PrefillAt,
    Queued,
    Resume,
    SkipTo,
    Want,
)

__all__ = [
    "DecodeAt",
    "Fleet",
    "Have",
    "Join",
    "Lease",
    "Load",
    "Member",
    "Placement",
    "PrefillAt",
    "Queued",
    "Reporter",
    "Resume",
    "RouterClient",
    "SkipTo",
    "Want",
    "status",
]


class Lease:
    """One placed request; it lives until `close`, the router's end, or a refusal.

    Iterate for what the router says about the current attempt; answers to older attempts are
    dropped. Raises Overloaded when refused (code `no_capacity` or `queue_timeout`), Lost when the
    router is gone.
    """

    def __aiter__(self) -> AsyncIterator[Placement]:
        raise NotImplementedError

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        """Tell how far the attempt is; with `last_chunk_started` the router answers DecodeAt."""
        raise NotImplementedError

    async def again(self, attempt: int, failed_worker: str, why: str, have: Have) -> None:
        """Open the next attempt."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the lease; the router forgets the request. Twice is once."""
        raise NotImplementedError

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


class RouterClient:
    """Places requests with one router over one channel."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def place(self, want: Want) -> Lease:
        """Open a lease; Lost if the router cannot be reached."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the channel; open leases end with it."""
        raise NotImplementedError


class Reporter:
    """Keeps this process a member of the fleet, for ever: joins, reports load, joins again.

    `load` is asked at most every 100 ms after `notify()`, and every second anyway.
    """

    def __init__(self, address: str, join: Join, load: Callable[[], Load]) -> None:
        self.fleet: Fleet | None = None  # the last one heard, kept while the router is away
        self.is_connected = False

    def notify(self) -> None:
        """The load changed."""
        raise NotImplementedError

    async def fleet_changed(self) -> Fleet:
        """Wait for the next fleet from the router."""
        raise NotImplementedError

    async def run(self) -> None:
        """Report until cancelled."""
        raise NotImplementedError


async def status(address: str, timeout_s: float) -> Fleet:
    """The fleet right now; Lost or Expired if the router does not answer."""
    raise NotImplementedError
