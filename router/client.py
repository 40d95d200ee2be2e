"""The routers' front door: place requests, report load, ask who is there."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc.aio

from diptych.config import addresses_of
from diptych.core.errors import DiptychError, Expired, Lost
from diptych.router.lease import Lease
from diptych.router.leases import Leases
from diptych.router.messages import (
    BlockTier,
    DecodeAt,
    Drain,
    Fleet,
    Have,
    Join,
    Load,
    Member,
    Placement,
    PrefillAt,
    Queued,
    Resume,
    RouterView,
    SkipTo,
    Want,
)
from diptych.router.overview import drain, drained, status, watch
from diptych.router.reporter import Reporter
from diptych.router.reporters import Reporters
from diptych.transport.channel import Backoff, Dial, connect

__all__ = [
    "BlockTier",
    "DecodeAt",
    "Drain",
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
    "Reporters",
    "Resume",
    "RouterClient",
    "RouterView",
    "SkipTo",
    "Want",
    "drain",
    "drained",
    "status",
    "watch",
]

OPEN_WAIT_S = 5.0  # a lease may ride over a router's restart
TRY_S = 1.0  # for a router while there are others
AVOIDED_S = 5.0  # one that was lost comes after the others, until a broken connection is known


@dataclass(slots=True)
class _Line:
    """To one router. `lost_s`: when it did not answer."""

    channel: grpc.aio.Channel
    leases: Leases
    lost_s: float = float("-inf")

    async def close(self) -> None:
        await self.leases.close()
        await self.channel.close()


class RouterClient:
    """Places each request at one of several routers, over a channel for each.

    `routers` are addresses, comma-separated, or a function that gives them, best first:
    `Reporters.preferred`.
    """

    def __init__(
        self,
        routers: str | Callable[[], Sequence[str]],
        *,
        try_s: float = TRY_S,
        dial: Dial = connect,
    ) -> None:
        fixed = addresses_of(routers) if isinstance(routers, str) else []
        self._preferred = routers if callable(routers) else lambda: fixed
        self._try_s = try_s
        self._dial = dial
        self._lines: dict[str, _Line] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def place(self, want: Want) -> Lease:
        """Open a lease at the first router that answers; Lost if none can be reached."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(OPEN_WAIT_S, want.deadline_s)
        backoff = Backoff(cap_s=1.0)
        while True:
            lines = self._in_order(loop.time())
            try_s = self._try_s if len(lines) > 1 else OPEN_WAIT_S
            error: DiptychError = Lost("no router is known")
            for line in lines:
                try:
                    return await line.leases.open(want, min(try_s, until_s - loop.time()))
                except (Lost, Expired) as lost:
                    line.lost_s = loop.time()
                    error = lost
            pause_s = backoff.failed()
            if loop.time() + pause_s >= until_s:
                raise error
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close all channels; open leases end with them."""
        for line in self._lines.values():
            await line.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _in_order(self, now_s: float) -> list[_Line]:
        """Those that were lost a moment ago last; a line to each, and to nobody else."""
        addresses = self._preferred()
        for address in addresses:
            if address not in self._lines:
                channel = self._dial(address)
                self._lines[address] = _Line(channel, Leases(channel))
        for address in self._lines.keys() - set(addresses):
            # Its leases end, if it lives at all; they are opened again at another router.
            closing = asyncio.create_task(self._lines.pop(address).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        lines = [self._lines[address] for address in addresses]
        return sorted(lines, key=lambda line: now_s < line.lost_s + AVOIDED_S)
