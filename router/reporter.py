"""How a process stays a member of the fleet: it reports load and blocks, and hears who is there."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Lost
from diptych.core.ids import BlockHash
from diptych.router import wire
from diptych.router.messages import BlockChanges, BlockTier, Drain, Fleet, Join, Load
from diptych.transport.channel import Backoff, Dial, connect
from diptych.transport.errors import from_rpc

log = logging.getLogger(__name__)

MIN_REPORT_GAP_S = 0.1
MAX_REPORT_GAP_S = 1.0
REJOIN_CAP_S = 1.0
BLOCKS_A_MESSAGE = 8192


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
    """Keeps this process a member of one router's fleet, for ever: joins, reports, joins again.

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
        on_drain: Callable[[Drain], None] = lambda _: None,
        block_log: BlockSource | None = None,
        tier: BlockTier = BlockTier.DEVICE,
        on_change: Callable[[], None] = lambda: None,
        dial: Dial = connect,
    ) -> None:
        self.fleet: Fleet | None = None  # the last one heard, kept while the router is away
        self.is_connected = False
        self.connected_s = 0.0  # since when, if it is
        self.lost_s = float("-inf")  # since when not, if it ever was
        self._address = address
        self._on_change = on_change  # the fleet was heard, or the router lost
        self._dial = dial
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
            channel = self._dial(self._address)
            try:
                await self._report(channel, backoff)
            except DiptychError as error:
                if self.is_connected or not backoff.failures:
                    log.warning("router is away, joining again at=%s: %s", self._address, error)
            finally:
                was_connected, self.is_connected = self.is_connected, False
                if was_connected:
                    self.lost_s = asyncio.get_running_loop().time()
                    self._on_change()
                await channel.close()
            await asyncio.sleep(backoff.failed())

    async def _report(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        over = asyncio.Event()
        try:
            async for message in stub.Report(self._send(over)):
                if not self.is_connected:
                    log.info("joined the fleet router=%s", self._address)
                    self.connected_s = asyncio.get_running_loop().time()
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
                self._on_change()
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
