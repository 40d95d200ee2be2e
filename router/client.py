"""The router's front door: place requests, report load, ask who is there."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

import grpc
import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Expired, Lost, Overloaded
from diptych.core.ids import BlockHash
from diptych.core.phases import Phase
from diptych.router import wire
from diptych.router.messages import (
    Again,
    BlockChanges,
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
    Progress,
    Queued,
    RefusedBy,
    Resume,
    SkipTo,
    Want,
)
from diptych.transport.channel import Backoff, call, connect, deadline
from diptych.transport.errors import from_rpc

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
    "Resume",
    "RouterClient",
    "SkipTo",
    "Want",
    "drain",
    "drained",
    "status",
    "watch",
]


log = logging.getLogger(__name__)

OPEN_WAIT_S = 5.0  # a lease may ride over a router's restart
MIN_REPORT_GAP_S = 0.1
MAX_REPORT_GAP_S = 1.0
REJOIN_CAP_S = 1.0
BLOCKS_A_MESSAGE = 8192


class Lease:
    """One placed request; it lives until `close` or the router's end.

    Iterate for what the router says about the current attempt; answers to older attempts are
    dropped. Raises Overloaded when refused (code `no_capacity` or `queue_timeout`), Lost when the
    router is gone. Only `RouterClient.place` makes one.
    """

    def __init__(self, stub: pb_grpc.RouterStub, want: Want) -> None:
        self._attempt = want.attempt
        self._ups: asyncio.Queue[wire.PlaceUp | None] = asyncio.Queue()  # None ends them
        self._ups.put_nowait(want)
        self._downs: asyncio.Queue[wire.PlaceDown | DiptychError] = asyncio.Queue()
        self._call = stub.Place(self._send(), wait_for_ready=True)
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, timeout_s: float) -> None:
        """Wait until the router has the lease; Lost if it does not answer in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.wait_for_connection()
        except TimeoutError:
            self._call.cancel()
            raise Lost(f"the router did not answer for {timeout_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        # Apart, so that who stops waiting for an answer does not end the call.
        self._reader = asyncio.create_task(self._read())

    def __aiter__(self) -> AsyncIterator[Placement]:
        return self

    async def __anext__(self) -> Placement:
        while not self._is_closed:
            down = await self._downs.get()
            if isinstance(down, DiptychError):
                self._downs.put_nowait(down)  # for whoever asks again
                raise down
            if down.attempt < self._attempt:
                continue
            if isinstance(down, RefusedBy):
                raise Overloaded(down.message, code=down.code, retry_after_s=down.retry_after_s)
            return down
        raise StopAsyncIteration

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        """Tell how far the attempt is; with `last_chunk_started` the router answers DecodeAt."""
        self._ups.put_nowait(Progress(phase, tokens, last_chunk_started))

    async def again(
        self, attempt: int, failed_worker: str, why: str, have: Have, code: str = ""
    ) -> None:
        """Open the next attempt; `code` is that of the error which ended the last one."""
        self._attempt = attempt
        self._ups.put_nowait(Again(attempt, failed_worker, why, have, code))

    async def close(self) -> None:
        """End the lease; the router forgets the request. Twice is once."""
        self._is_closed = True
        self._ups.put_nowait(None)
        self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def _send(self) -> AsyncIterator[pb.PlaceUp]:
        while (up := await self._ups.get()) is not None:
            yield wire.place_up_to_pb(up)

    async def _read(self) -> None:
        try:
            async for message in self._call:
                down = wire.place_down_from_pb(message)
                if down is not None:
                    self._downs.put_nowait(down)
            self._downs.put_nowait(Lost("the router ended the lease"))
        except grpc.aio.AioRpcError as error:
            self._downs.put_nowait(from_rpc(error))
        finally:
            self._ups.put_nowait(None)  # or grpc would wait for the next one for ever


class RouterClient:
    """Places requests with one router over one channel."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = connect(address)
        self._stub = pb_grpc.RouterStub(self._channel)  # type: ignore[no-untyped-call]

    async def place(self, want: Want) -> Lease:
        """Open a lease; Lost if the router cannot be reached."""
        lease = Lease(self._stub, want)
        try:
            await lease.open(min(OPEN_WAIT_S, want.deadline_s))
        except BaseException:
            await lease.close()
            raise
        return lease

    async def close(self) -> None:
        """Close the channel; open leases end with it."""
        await self._channel.close()


class BlockSource(Protocol):
    """Numbered changes of what a block cache holds: the engine's log of them."""

    def since(self, seq: int | None, limit: int) -> "Announced | None":
        """Changes from a number on, or all that is held (None asks for it); None: nothing new."""
        ...


class Announced(Protocol):
    """Consecutive changes, or a snapshot."""

    @property
    def first_seq(self) -> int: ...

    @property
    def next_seq(self) -> int: ...

    @property
    def names(self) -> tuple[BlockHash, ...]: ...

    @property
    def stored(self) -> tuple[bool, ...]: ...

    @property
    def is_snapshot(self) -> bool: ...


class Reporter:
    """Keeps this process a member of the fleet, for ever: joins, reports load, joins again.

    `load` is asked at most every 100 ms after `notify()`, and every second anyway. With it goes
    what changed in the block cache since: all of it after joining, or when too much was missed.
    `on_drain` hears that an operator wants this member drained, or no more; its load must say so
    afterwards.
    """

    def __init__(
        self,
        address: str,
        join: Join,
        load: Callable[[], Load],
        *,
        on_drain: Callable[[Drain], None] = lambda drain: None,
        block_log: BlockSource | None = None,
        tier: BlockTier = BlockTier.DEVICE,
    ) -> None:
        self.fleet: Fleet | None = None  # the last one heard, kept while the router is away
        self.is_connected = False
        self._address = address
        self._join = join
        self._load = load
        self._on_drain = on_drain
        self._block_log = block_log
        self._tier = tier
        self._next_seq: int | None = None  # of the changes to announce; None: everything
        self._dirty = asyncio.Event()
        self._news = asyncio.Event()

    def notify(self) -> None:
        """The load changed."""
        self._dirty.set()

    async def fleet_changed(self) -> Fleet:
        """Wait for the next fleet from the router."""
        await self._news.wait()
        assert self.fleet is not None
        return self.fleet

    async def run(self) -> None:
        """Report until cancelled."""
        backoff = Backoff(first_s=MIN_REPORT_GAP_S, cap_s=REJOIN_CAP_S)
        while True:
            channel = connect(self._address)
            try:
                await self._report(channel, backoff)
            except DiptychError as error:
                if self.is_connected or not backoff.failures:
                    log.warning("router is away, joining again at=%s: %s", self._address, error)
            finally:
                self.is_connected = False
                await channel.close()
            await asyncio.sleep(backoff.failed())

    async def _report(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        over = asyncio.Event()
        try:
            async for message in stub.Report(self._send(over)):
                if not self.is_connected:
                    log.info("joined the fleet router=%s", self._address)
                self.is_connected = True
                backoff.succeeded()
                if message.WhichOneof("body") == "drain":
                    self._on_drain(wire.drain_from_pb(message.drain))
                    self.notify()
                    continue
                if message.WhichOneof("body") == "missing_from":
                    self._next_seq = message.missing_from
                    self._dirty.set()
                    continue
                self.fleet = wire.fleet_from_pb(message.fleet)
                self._news.set()
                self._news = asyncio.Event()
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        finally:
            over.set()
            self._dirty.set()
        raise Lost("the router ended the report stream")

    async def _send(self, over: asyncio.Event) -> AsyncIterator[pb.ReportUp]:
        loop = asyncio.get_running_loop()
        yield pb.ReportUp(join=wire.join_to_pb(self._join))
        self._next_seq = None
        while not over.is_set():
            self._dirty.clear()
            sent_s = loop.time()
            yield pb.ReportUp(load=wire.load_to_pb(self._load()))
            for blocks in self._announcements():
                yield pb.ReportUp(blocks=wire.blocks_to_pb(blocks))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_REPORT_GAP_S):
                    await self._dirty.wait()
            await asyncio.sleep(sent_s + MIN_REPORT_GAP_S - loop.time())

    def _announcements(self) -> Iterator[BlockChanges]:
        """What changed in the block cache since the last time, in messages of some size."""
        while self._block_log is not None:
            changes = self._block_log.since(self._next_seq, BLOCKS_A_MESSAGE)
            if changes is None:
                return
            self._next_seq = changes.next_seq
            if not changes.is_snapshot:
                yield BlockChanges(changes.first_seq, changes.names, changes.stored, self._tier)
                continue
            for start in range(0, max(1, len(changes.names)), BLOCKS_A_MESSAGE):
                end = start + BLOCKS_A_MESSAGE
                yield BlockChanges(
                    changes.first_seq,
                    changes.names[start:end],
                    tier=self._tier,
                    is_snapshot=True,
                    is_first=start == 0,
                    is_last=end >= len(changes.names),
                )


async def status(address: str, timeout_s: float) -> Fleet:
    """The fleet right now; Lost or Expired if the router does not answer."""
    async with connect(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        return wire.fleet_from_pb(await call(stub.Status, pb.StatusRequest(), timeout_s=timeout_s))


async def watch(address: str, period_s: float = 1.0) -> AsyncIterator[Fleet]:
    """The fleet now, and again every period or sooner; Lost once the router does not answer."""
    async with connect(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for fleet in stub.Watch(pb.FleetWatch(period_ms=round(period_s * 1000))):
                yield wire.fleet_from_pb(fleet)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error


async def drain(address: str, member_id: str, wish: Drain, timeout_s: float) -> Fleet:
    """Give a worker no new work, or some again; NotFound if the router does not know it."""
    request = pb.DrainRequest(member_id=member_id, drain=wire.drain_to_pb(wish))
    async with connect(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        return wire.fleet_from_pb(await call(stub.Drain, request, timeout_s=timeout_s))


async def drained(address: str, member_id: str, timeout_s: float) -> None:
    """Wait until a draining worker holds nothing any more, or is gone.

    Expired says what was left; BadRequest if somebody ended the drain.
    """
    last: Member | None = None
    try:
        async with deadline(timeout_s, f"draining {member_id}"):
            async for fleet in watch(address, period_s=0.2):
                named = (m for m in fleet.members if m.join.member_id == member_id)
                last = next(named, None)
                if last is None or (last.is_idle and last.load.draining):
                    return
    except Expired as error:
        left = last.leases if last is not None else 0
        raise Expired(f"{error.message}; {left} requests are left") from None
