"""The store's RPCs: look-ups, pins, the two streams of blocks, index news, the operator's desk."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreServicer, add_StoreServicer_to_server
from diptych.core.blocks import HASH_BYTES
from diptych.core.errors import BadRequest, Overloaded, Refused
from diptych.core.ids import BlockHash, WorkerId
from diptych.core.index_events import IndexBatch
from diptych.kvcache_store.arrivals import Arrivals, Expected, announced, announced_slots
from diptych.kvcache_store.items import Origin, Tier
from diptych.kvcache_store.report import Operator
from diptych.kvcache_store.retention import Retention, retention_of
from diptych.kvcache_store.tiers import Tiers
from diptych.kvcache_store.wire import (
    Whose,
    found_to_pb,
    hashes_from_pb,
    origin_of,
    segment_to_pb,
    stats_to_pb,
    whose_from_pb,
)
from diptych.transport.blocks import BlockServer
from diptych.transport.channel import deadline
from diptych.transport.frames import Part, PartKind

SERVICE = "diptych.contract.Store"
PUT_BLOCKS = "PutBlocks"
SILENCE_S = 10.0
ON_DISK_S = 30.0  # how long a put may wait for the disk
NEWS_BEHIND = 4096  # batches; a watcher that is further behind begins anew
SNAPSHOT_HASHES = 65_536  # a message


class StoreService(StoreServicer):
    """One node for its peers."""

    def __init__(
        self,
        tiers: Tiers,
        desk: Operator,
        *,
        silence_s: float = SILENCE_S,
        on_lookup: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._tiers = tiers
        self._desk = desk
        self._silence_s = silence_s
        self._on_lookup = on_lookup
        self._layouts: dict[bytes, bytes] = {}  # by namespace, as its first caller said
        self._blocks = BlockServer(self._open_reader, silence_s=silence_s)
        self.num_puts = 0

    def register(self, server: grpc.aio.Server) -> None:
        """Add all methods to a server."""
        add_StoreServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        method: Any = grpc.stream_stream_rpc_method_handler(self._put_blocks)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {PUT_BLOCKS: method}),)
        )
        self._blocks.register(server)

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:
        """Where each part is. Renews nothing; pins on demand."""
        began_s = time.perf_counter()
        _, origin = self._origin(request.origin)
        names = hashes_from_pb(request.hashes)
        tiers = self._tiers
        blocks = [tiers.find(PartKind.BLOCK, name, origin) for name in names]
        anchors = [tiers.find(PartKind.ANCHOR, name, origin) for name in names]
        pin = 0
        if request.pin_ms:
            here = [n for n, at in zip(names, blocks, strict=True) if at.tier is not Tier.NOWHERE]
            pin = tiers.pin(here, request.owner, "lookup", request.pin_ms / 1000)
        self._on_lookup(time.perf_counter() - began_s)
        return pb.LookupReply(
            blocks=found_to_pb(blocks),
            anchors=found_to_pb(anchors),
            pin=pin,
            life=self._life(),
        )

    async def Greet(self, request: pb.GreetRequest, context: Any) -> pb.NodeLife:
        """Whether anybody is here, and since when."""
        return self._life()

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        """End a pin; one that is over already is no error."""
        self._tiers.pins.release(request.pin)
        return pb.ReleaseReply()

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.IndexNews]:
        """What the watcher missed, or a snapshot; then what happens."""
        events = self._tiers.events
        news: asyncio.Queue[IndexBatch] = asyncio.Queue(NEWS_BEHIND)
        is_behind = asyncio.Event()

        def hear(batch: IndexBatch) -> None:
            try:
                news.put_nowait(batch)
            except asyncio.QueueFull:
                is_behind.set()

        stop = events.listen(hear)
        try:
            missed = (
                events.since(request.seq) if request.incarnation == events.incarnation else None
            )
            if missed is None:
                for message in self._snapshot():
                    yield message
            for batch in missed or ():
                yield self._news(batch)
            while not is_behind.is_set():
                yield self._news(await news.get())
        finally:
            stop()
        raise Overloaded("the watcher does not keep up; it begins anew", code="watch_behind")

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsReply:
        """Bytes by class, tenant and age; counters since start."""
        return stats_to_pb(await self._desk.stats())

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:
        """All segments."""
        return pb.ListReply(segments=[segment_to_pb(r) for r in await self._desk.segments()])

    async def Verify(self, request: pb.VerifyRequest, context: Any) -> pb.VerifyReply:
        """Read everything on disk; drop what is damaged."""
        done = await self._desk.verify()
        return pb.VerifyReply(read_bytes=done.read_bytes, corrupt=done.corrupt)

    async def Collect(self, request: pb.CollectRequest, context: Any) -> pb.CollectReply:
        """Expire and compact now."""
        done = await self._desk.collect(foreign=request.foreign)
        return pb.CollectReply(moved_bytes=done.moved_bytes, freed_bytes=done.freed_bytes)

    async def Remove(self, request: pb.RemoveRequest, context: Any) -> pb.RemoveReply:
        """Delete a tenant."""
        return pb.RemoveReply(receipt=await self._desk.remove(request.tenant))

    async def _open_reader(self, ticket: bytes, asker: WorkerId) -> "_Reader":
        try:
            right = pb.ReadRight.FromString(ticket)
            kind = PartKind(right.kind)
        except (DecodeError, ValueError) as error:
            raise BadRequest("not a ReadRight", param="ticket") from error
        if kind is PartKind.TAIL:
            raise BadRequest("kind: expected a block, an anchor or a slot", param="kind")
        return _Reader(self._tiers, self._origin(right.origin)[1], kind)

    async def _put_blocks(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async with deadline(self._silence_s, "what will be put"):
            up = _parse(await anext(requests, b""))
        self.num_puts += 1
        try:
            stored = await self._put(up, requests, context)
            await context.write(pb.PutDown(stored=stored).SerializeToString())
        finally:
            self.num_puts -= 1

    async def _put(self, up: pb.PutUp, requests: AsyncIterator[bytes], context: Any) -> pb.Stored:
        """Say what is wanted, take it, answer what became of it."""
        retention = retention_of(up.retention)
        expected = _expected(up)
        whose, origin = self._origin(up.origin)
        if retention is Retention.NONE:
            await context.write(_wanted_to_pb([]))
            return pb.Stored(retention=retention)
        admission = self._tiers.tenants.admit(whose.tenant)
        arrivals = Arrivals(origin, self._wanted(expected, origin, retention))
        await context.write(_wanted_to_pb(arrivals.missing))
        stored = pb.Stored(retention=retention)
        on_disk: list[tuple[int, asyncio.Future[bool]]] = []
        while not arrivals.has_ended:
            async with deadline(self._silence_s, "the next frame", code="transfer_silent"):
                data = await anext(requests, None)
            if data is None:
                break  # the caller's end; what came is kept
            items = arrivals.accept(data)
            if up.await_disk:
                async with deadline(ON_DISK_S, "the disk", code="disk_slow"):
                    await self._tiers.until_room(sum(len(item.payload) for item in items))
            put = self._tiers.put(items, retention, admission, is_complete=up.complete)
            stored.retention = put.granted
            stored.in_memory += put.num_held
            if up.await_disk and put.on_disk is not None:
                on_disk.append((len(items), put.on_disk))
            await context.write(pb.PutDown(credit_bytes=len(data)).SerializeToString())
        if on_disk:
            await asyncio.wait([done for _, done in on_disk], timeout=ON_DISK_S)
        for parts, done in on_disk:
            if done.done() and done.result():
                stored.on_disk += parts
            else:
                stored.dropped += parts
        return stored

    def _life(self) -> pb.NodeLife:
        tiers = self._tiers
        return pb.NodeLife(
            incarnation=tiers.events.incarnation, age_s=tiers.age_s, was_empty=tiers.was_empty
        )

    def _wanted(
        self, expected: Sequence[Expected], origin: Origin, retention: Retention
    ) -> list[Expected]:
        """What is not here yet. What is, was used again: its promise is prolonged."""
        wanted: list[Expected] = []
        for one in expected:
            if self._tiers.find(one.kind, one.name, origin).tier is Tier.NOWHERE:
                wanted.append(one)
            else:
                self._tiers.renew(origin, one.kind, one.name, retention)
        return wanted

    def _origin(self, origin: pb.Origin) -> tuple[Whose, Origin]:
        """For which bytes is asked; Refused if the namespace has another layout here."""
        whose = whose_from_pb(origin)
        known = self._layouts.setdefault(whose.namespace, whose.layout_hash)
        if known != whose.layout_hash:
            raise Refused("this namespace's blocks have another layout here")
        self._tiers.use(whose.namespace)
        return whose, origin_of(whose, self._tiers.tenants.group_of(whose.tenant))

    def _snapshot(self) -> Iterator[pb.IndexNews]:
        """All blocks of all tiers, as of the last number."""
        events, disk = self._tiers.events, self._tiers.disk
        held = [("memory", self._tiers.memory.blocks())]
        if disk is not None:
            held.append(("disk", disk.segments.blocks()))
        pages = [
            (tier, names[i : i + SNAPSHOT_HASHES])
            for tier, names in held
            for i in range(0, len(names), SNAPSHOT_HASHES)
        ] or [("memory", [])]
        for number, (tier, names) in enumerate(pages):
            yield pb.IndexNews(
                incarnation=events.incarnation,
                seq=events.last_seq,
                snapshot=number == 0,
                more=number + 1 < len(pages),
                came=True,
                tier=tier,
                hashes=b"".join(names),
            )

    def _news(self, batch: IndexBatch) -> pb.IndexNews:
        return pb.IndexNews(
            incarnation=self._tiers.events.incarnation,
            seq=batch.seq,
            came=batch.came,
            tier=batch.tier,
            hashes=b"".join(batch.names),
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    """The RunReader of one GetBlocks."""

    tiers: Tiers
    origin: Origin
    kind: PartKind

    async def read_run(self, names: Sequence[BlockHash]) -> list[Part]:
        return [item.part for item in await self.tiers.read(self.origin, self.kind, names)]


def _expected(up: pb.PutUp) -> list[Expected]:
    blocks = hashes_from_pb(up.hashes)
    if up.kind == PartKind.SLOT:
        if up.anchors or up.exact or len(set(blocks)) != len(blocks):
            raise BadRequest("slots: expected names, each once, and nothing else", param="hashes")
        return announced_slots(blocks, scope=up.origin.scope)
    if up.kind not in (0, PartKind.BLOCK):
        raise BadRequest(f"kind: {up.kind}; expected blocks or slots", param="kind")
    if len(up.exact) != len(blocks):
        raise BadRequest(f"exact: {len(up.exact)} bytes; expected {len(blocks)}", param="exact")
    if len(up.parent) != HASH_BYTES:
        raise BadRequest(f"parent: {len(up.parent)} bytes; expected {HASH_BYTES}", param="parent")
    if any(position >= len(blocks) for position in up.anchors):
        raise BadRequest(f"anchors: a position beyond the {len(blocks)} hashes", param="anchors")
    if len(set(blocks)) != len(blocks) or len(set(up.anchors)) != len(up.anchors):
        raise BadRequest("hashes or anchors: one comes twice", param="hashes")
    return announced(blocks, up.exact, up.anchors, parent=up.parent, first_index=up.first_index)


def _wanted_to_pb(wanted: Sequence[Expected]) -> bytes:
    names = {
        kind: b"".join(one.name for one in wanted if one.kind is kind)
        for kind in (PartKind.BLOCK, PartKind.ANCHOR, PartKind.SLOT)
    }
    message = pb.Wanted(
        blocks=names[PartKind.BLOCK], anchors=names[PartKind.ANCHOR], slots=names[PartKind.SLOT]
    )
    return pb.PutDown(wanted=message).SerializeToString()


def _parse(data: bytes) -> pb.PutUp:
    try:
        return pb.PutUp.FromString(data)
    except DecodeError as error:
        raise BadRequest("not a PutUp message") from error
