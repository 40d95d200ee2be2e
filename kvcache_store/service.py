"""The store's RPCs: look-ups, pins, the two streams of blocks, index news, the operator's desk."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreServicer, add_StoreServicer_to_server
from diptych.core.errors import Overloaded, Refused
from diptych.core.ids import BlockHash, WorkerId
from diptych.core.index_events import IndexBatch
from diptych.kvcache_store.intake import Intake
from diptych.kvcache_store.items import Origin, Tier
from diptych.kvcache_store.messages import Whose
from diptych.kvcache_store.report import Operator
from diptych.kvcache_store.sharing import SharedPeer
from diptych.kvcache_store.tiers import Tiers
from diptych.kvcache_store.wire import (
    announcement_from_bytes,
    found_to_pb,
    hashes_from_pb,
    origin_of,
    right_from_bytes,
    segment_to_pb,
    stats_to_pb,
    stored_to_pb,
    wanted_to_pb,
    whose_from_pb,
)
from diptych.transport.blocks import BlockServer
from diptych.transport.channel import deadline
from diptych.transport.frames import Part, PartKind

SERVICE = "diptych.contract.Store"
SILENCE_S = 10.0
NEWS_BEHIND = 4096  # batches; a watcher that is further behind begins anew
SNAPSHOT_HASHES = 8192  # a message: who keeps an index does other things between two of them


class StoreService(StoreServicer):
    """One node for its peers."""

    def __init__(
        self,
        tiers: Tiers,
        desk: Operator,
        *,
        silence_s: float = SILENCE_S,
        snapshot_hashes: int = SNAPSHOT_HASHES,
        on_lookup: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._tiers = tiers
        self._desk = desk
        self._silence_s = silence_s
        self._snapshot_hashes = snapshot_hashes
        self._on_lookup = on_lookup
        self._layouts: dict[bytes, bytes] = {}  # by namespace, as its first caller said
        self._blocks = BlockServer(self._open_reader, silence_s=silence_s)

    def register(self, server: grpc.aio.Server) -> None:
        """Add all methods to a server."""
        add_StoreServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        streams: dict[str, Any] = {
            "PutBlocks": grpc.stream_stream_rpc_method_handler(self._put_blocks),
            "ShareBlocks": grpc.stream_stream_rpc_method_handler(self._share_blocks),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, streams),))
        self._blocks.register(server)

    async def Lookup(self, request: pb.LookupRequest, context: Any) -> pb.LookupReply:
        """Where each part is. Renews nothing; pins on demand."""
        began_s = time.perf_counter()
        origin = self._origin(whose_from_pb(request.origin))
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
        await context.send_initial_metadata(())  # it is followed, even if there are no news yet
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
        whose, kind = right_from_bytes(ticket)
        return _Reader(self._tiers, self._origin(whose), kind)

    async def _put_blocks(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Say what is wanted, take it frame by frame, say what became of it."""
        async with deadline(self._silence_s, "what will be put"):
            announced = announcement_from_bytes(await anext(requests, b""))
        intake = Intake(self._tiers, announced, self._origin(announced.whose))
        arrivals = intake.arrivals
        await _say(context, pb.PutDown(wanted=wanted_to_pb(arrivals.missing)))
        while not arrivals.has_ended:
            async with deadline(self._silence_s, "the next frame", code="transfer_silent"):
                data = await anext(requests, None)
            if data is None:
                break  # the caller's end; what came is kept
            await intake.store(arrivals.accept(data))
            await _say(context, pb.PutDown(credit_bytes=len(data)))
        await _say(context, pb.PutDown(stored=stored_to_pb(await intake.outcome())))

    async def _share_blocks(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Gets and puts through a window of the peer's memory."""

        async def receive() -> bytes | None:
            return await anext(requests, None)

        peer = SharedPeer(self._tiers, self._origin, receive, context.write, self._silence_s)
        await peer.serve()

    def _life(self) -> pb.NodeLife:
        tiers = self._tiers
        return pb.NodeLife(
            incarnation=tiers.events.incarnation, age_s=tiers.age_s, was_empty=tiers.was_empty
        )

    def _origin(self, whose: Whose) -> Origin:
        """For which bytes is asked; Refused if the namespace has another layout here."""
        known = self._layouts.setdefault(whose.namespace, whose.layout_hash)
        if known != whose.layout_hash:
            raise Refused("this namespace's blocks have another layout here")
        self._tiers.use(whose.namespace)
        return origin_of(whose, self._tiers.tenants.group_of(whose.tenant))

    def _snapshot(self) -> Iterator[pb.IndexNews]:
        """All blocks of all tiers, as of the last number; what happens meanwhile follows."""
        events, disk = self._tiers.events, self._tiers.disk
        seq, step = events.last_seq, self._snapshot_hashes
        held = [("memory", self._tiers.memory.blocks())]
        if disk is not None:
            held.append(("disk", disk.segments.blocks()))
        pages = [
            (tier, names[i : i + step]) for tier, names in held for i in range(0, len(names), step)
        ] or [("memory", [])]
        for number, (tier, names) in enumerate(pages):
            yield pb.IndexNews(
                incarnation=events.incarnation,
                seq=seq,
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


async def _say(context: Any, message: pb.PutDown) -> None:
    await context.write(message.SerializeToString())
