"""One node as a client sees it: its calls, whether it is up, how much it should take."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from diptych.core.errors import Broken, DiptychError, Expired, Lost
from diptych.core.ids import BlockHash, WorkerId
from diptych.kvcache_store import placement, wire
from diptych.kvcache_store.links import Links, Transport
from diptych.kvcache_store.messages import Fetch, Life, LookedUp, Stored, Wanted, Whose
from diptych.transport.blocks import FrameSender, pull_blocks
from diptych.transport.channel import Backoff, Dial, call, deadline
from diptych.transport.errors import from_rpc
from diptych.transport.frames import (
    PARTS_A_FRAME,
    BlockWriter,
    Fault,
    Part,
    PartKind,
    Receiver,
)

GREET_S = 1.0
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
_PUT = "/diptych.contract.Store/PutBlocks"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Got:
    """What one pull brought."""

    done: frozenset[BlockHash]
    size_bytes: int
    is_whole: bool
    is_damaged: bool = False  # it ended at a part that does not match its checksum


class Node:
    """Calls to one store. Small calls and bulk never share a connection."""

    def __init__(self, address: str, worker_id: WorkerId, transport: Transport, dial: Dial) -> None:
        self.address = address
        self.is_up = True  # until it proves otherwise
        self._worker_id = worker_id
        self._control = dial(address)
        self._bulk = dial(address)
        self._links = Links(self._bulk, address, transport)
        self._stub = wire.stub(self._control)
        self._life: Life | None = None
        self._heard_s = 0.0
        self._greeting: asyncio.Task[None] | None = None
        self._has_left = False
        self._num_calls = 0  # under way
        self._is_idle = asyncio.Event()

    @property
    def shares_memory(self) -> bool:
        """Whether blocks go through shared memory, as far as was tried."""
        return self._links.num_opened > 0

    @property
    def weight(self) -> float:
        """Its share of what is put, see placement."""
        if self._life is None:
            return 1.0
        age_s = self._life.age_s + asyncio.get_running_loop().time() - self._heard_s
        return placement.weight(age_s, was_empty=self._life.was_empty)

    async def lookup(
        self, whose: Whose, names: Sequence[BlockHash], *, pin_s: float, timeout_s: float
    ) -> LookedUp:
        """Where each block and its anchor are."""
        request = wire.lookup_to_pb(whose, names, self._worker_id, pin_s)
        async with self._judged():
            reply = await call(self._stub.Lookup, request, timeout_s=timeout_s)
        answer = wire.looked_up_from_pb(reply, len(names))
        self._lives(answer.life)
        return answer

    async def release(self, pin: int, timeout_s: float) -> None:
        """End a pin; one that cannot be ended lapses."""
        try:
            await call(self._stub.Release, wire.release_to_pb(pin), timeout_s=timeout_s)
        except DiptychError as error:
            log.info("pin not released node=%s code=%s", self.address, error.code)

    async def pull(
        self,
        whose: Whose,
        kind: PartKind,
        names: Sequence[BlockHash],
        writer: BlockWriter,
        deadline_s: float,
    ) -> Got:
        """Fetch parts of one kind; what is missing, damaged or late is not in `done`."""
        receiver = Receiver(names, writer)
        part_bytes = len(writer.place(names[0]).into)
        try:
            async with self._judged(), deadline(deadline_s, "a fetch", code="store_slow"):
                async with self._links.borrow(part_bytes) as link:
                    if link is not None:
                        fetch = Fetch(whose, kind, tuple(names), part_bytes)
                        size_bytes = await link.fetch(fetch, receiver)
                if link is None:
                    right = wire.right_to_bytes(whose, kind)
                    pulled = await pull_blocks(
                        self._bulk, right, self._worker_id, receiver, silence_s=deadline_s
                    )
                    size_bytes = pulled.size_bytes
                receiver.finish()
        except DiptychError as error:
            done = frozenset(receiver.done)
            level = logging.INFO if error.code in _MISSES else logging.WARNING
            log.log(
                level,
                "fetch ended early node=%s parts=%d/%d code=%s",
                self.address,
                len(done),
                len(names),
                error.code,
            )
            size_bytes = sum(len(writer.place(name).into) for name in done)
            is_damaged = error.code == Fault.CHECKSUM
            return Got(done, size_bytes, is_whole=False, is_damaged=is_damaged)
        return Got(frozenset(receiver.done), size_bytes, is_whole=True)

    async def put(
        self,
        whose: Whose,
        blocks: Sequence[Part],
        exact: Sequence[bool],
        anchors: Mapping[int, Part],
        *,
        retention: str,
        parent: bytes,
        first_index: int,
        is_complete: bool,
        await_disk: bool,
        deadline_s: float,
    ) -> Stored:
        """Send what the node lacks of consecutive blocks and of anchors by position."""
        announced = wire.put_to_bytes(
            whose,
            retention,
            [part.name for part in blocks],
            exact,
            sorted(anchors),
            parent=parent,
            first_index=first_index,
            is_complete=is_complete,
            await_disk=await_disk,
        )
        by_name = {
            PartKind.BLOCK: {part.name: part for part in blocks},
            PartKind.ANCHOR: {part.name: part for part in anchors.values()},
        }
        async with self._judged(), deadline(deadline_s, "a put", code="store_slow"):
            largest = max(len(part.payload) for part in (*blocks, *anchors.values()))
            async with self._links.borrow(largest) as link:
                if link is not None:
                    return await link.put(announced, by_name)
            return await _put(self._bulk, announced, by_name, deadline_s)

    async def put_slot(
        self, whose: Whose, slot: Part, *, retention: str, deadline_s: float
    ) -> Stored:
        """Send a slot unless the node has it."""
        announced = wire.put_slots_to_bytes(whose, retention, [slot.name])
        by_name = {PartKind.SLOT: {slot.name: slot}}
        async with self._judged(), deadline(deadline_s, "a put", code="store_slow"):
            async with self._links.borrow(len(slot.payload)) as link:
                if link is not None:
                    return await link.put(announced, by_name)
            return await _put(self._bulk, announced, by_name, deadline_s)

    async def leave(self, within_s: float) -> None:
        """Finish what is under way, or what of it takes no longer than that, and close."""
        try:
            async with asyncio.timeout(within_s):
                while self._num_calls:
                    self._is_idle.clear()
                    await self._is_idle.wait()
        except TimeoutError:
            log.warning("calls cut off node=%s calls=%d", self.address, self._num_calls)
        finally:
            await self.close()

    async def close(self) -> None:
        self._has_left = True
        if self._greeting is not None:
            self._greeting.cancel()
            await asyncio.gather(self._greeting, return_exceptions=True)
        self._links.close()
        await self._control.close()
        await self._bulk.close()

    @asynccontextmanager
    async def _judged(self) -> AsyncIterator[None]:
        """A call that shows whether the node is there."""
        if self._has_left:
            raise Lost("this node is none of the tier's any more", code="node_left")
        self._num_calls += 1
        try:
            yield
        except (Lost, Expired) as error:
            if error.code not in _MISSES:
                self._is_lost(error)
            raise
        finally:
            self._num_calls -= 1
            self._is_idle.set()

    def _is_lost(self, error: DiptychError) -> None:
        if self.is_up:
            log.warning("node lost node=%s code=%s", self.address, error.code)
            self.is_up = False
            self._links.close()
            self._greeting = asyncio.create_task(self._greet())

    async def _greet(self) -> None:
        """Until the node answers; nobody waits for this."""
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while not self.is_up:
            await asyncio.sleep(backoff.failed())
            try:
                life = await call(self._stub.Greet, wire.greet_to_pb(), timeout_s=GREET_S)
            except DiptychError as error:
                log.debug("node still lost node=%s code=%s", self.address, error.code)
                continue
            self._lives(wire.life_from_pb(life))
            self.is_up = True
            log.info("node is back node=%s", self.address)

    def _lives(self, life: Life) -> None:
        self._life = life
        self._heard_s = asyncio.get_running_loop().time()


# Ends of a transfer that say something about the parts or our patience, not about the node.
_MISSES = frozenset({"unknown_block", Fault.INCOMPLETE, Fault.SIZE, Fault.KIND, "store_slow"})


async def _put(
    channel: grpc.aio.Channel,
    announced: bytes,
    by_name: Mapping[PartKind, Mapping[BlockHash, Part]],
    silence_s: float,
) -> Stored:
    """Our half of PutBlocks."""
    stream: Any = channel.stream_stream(_PUT)()
    listening: asyncio.Task[Stored] | None = None
    try:
        await stream.write(announced)
        wanted = await _hear(stream)
        if not isinstance(wanted, Wanted):
            raise Broken("a store did not say what it wants")
        sender = FrameSender(stream, silence_s)
        listening = asyncio.create_task(_listen(stream, sender))
        frames = list(_frames(wanted, by_name))
        for number, parts in enumerate(frames, 1):
            sending = asyncio.create_task(sender.send(parts, is_last=number == len(frames)))
            await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():  # the store has ended the stream
                sending.cancel()
                break
            await sending
        stored = await listening
        await stream.done_writing()
        return stored
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    except asyncio.InvalidStateError as error:
        raise Lost("the stream ended while blocks were put") from error
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        stream.cancel()


def _frames(
    wanted: Wanted, by_name: Mapping[PartKind, Mapping[BlockHash, Part]]
) -> list[list[Part]]:
    """What goes, eight parts of a kind at a time; Broken if something else was asked for."""
    try:
        found = [[by_name[kind][name] for name in names] for kind, names in wanted.by_kind()]
    except KeyError as error:
        raise Broken("a store wants what was not announced") from error
    return [
        parts[i : i + PARTS_A_FRAME] for parts in found for i in range(0, len(parts), PARTS_A_FRAME)
    ]


async def _listen(stream: Any, sender: FrameSender) -> Stored:
    """Pass credit on until the store says what became of it all."""
    while True:
        heard = await _hear(stream)
        if isinstance(heard, Stored):
            return heard
        if isinstance(heard, Wanted):
            raise Broken("a store said twice what it wants")
        sender.give(heard)


async def _hear(stream: Any) -> Wanted | int | Stored:
    data = await stream.read()
    if data is grpc.aio.EOF:
        raise Lost("the store ended a put without an answer")
    return wire.put_down_from_bytes(data)
