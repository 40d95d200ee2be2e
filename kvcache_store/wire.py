"""The store's values to and from protobuf."""

from collections.abc import Sequence
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreStub
from diptych.core.blocks import HASH_BYTES
from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import BlockHash
from diptych.kvcache_store.arrivals import Expected, announced, announced_slots
from diptych.kvcache_store.items import Found, Origin, Tier
from diptych.kvcache_store.ledger import Balance
from diptych.kvcache_store.messages import (
    Announcement,
    Fetch,
    Heard,
    Life,
    LookedUp,
    News,
    Stored,
    Wanted,
    Whose,
    WindowOffer,
)
from diptych.kvcache_store.report import Account, PinRow, SegmentRow, Stats
from diptych.kvcache_store.retention import retention_of
from diptych.transport.frames import PartKind
from diptych.transport.window import Filled

EXACT = 0x80
MOST_HASHES = 65_536  # of one message: a million tokens are 8,192 blocks
MOST_TENANT_CHARS = 128
_TIERS = {"memory": Tier.MEMORY, "disk": Tier.DISK}


def whose_to_pb(whose: Whose) -> pb.Origin:
    return pb.Origin(
        namespace=whose.namespace,
        layout_hash=whose.layout_hash,
        scope=whose.scope,
        tenant=whose.tenant,
    )


def whose_from_pb(origin: pb.Origin) -> Whose:
    """BadRequest unless every field has its length."""
    fields = {
        "namespace": origin.namespace,
        "layout_hash": origin.layout_hash,
        "scope": origin.scope,
    }
    for name, value in fields.items():
        if len(value) != HASH_BYTES:
            raise BadRequest(
                f"origin.{name}: {len(value)} bytes; expected {HASH_BYTES}", param=name
            )
    if not 1 <= len(origin.tenant) <= MOST_TENANT_CHARS:
        raise BadRequest(
            f"origin.tenant: {len(origin.tenant)} characters; expected 1 to {MOST_TENANT_CHARS}",
            param="tenant",
        )
    return Whose(**fields, tenant=origin.tenant)


def origin_of(whose: Whose, group: bytes) -> Origin:
    return Origin(whose.namespace, whose.layout_hash, whose.scope, group)


def hashes_from_pb(data: bytes, field: str = "hashes") -> list[BlockHash]:
    """BadRequest unless 1 to MOST_HASHES whole ones."""
    count, rest = divmod(len(data), HASH_BYTES)
    if rest or not 1 <= count <= MOST_HASHES:
        raise BadRequest(
            f"{field}: {len(data)} bytes; expected 1 to {MOST_HASHES} hashes of {HASH_BYTES}",
            param=field,
        )
    return [BlockHash(data[i : i + HASH_BYTES]) for i in range(0, len(data), HASH_BYTES)]


def found_to_pb(found: Sequence[Found]) -> bytes:
    return bytes(one.tier | (EXACT if one.is_exact else 0) for one in found)


def found_from_pb(data: bytes) -> list[Found]:
    """ValueError for a tier that this version does not know."""
    return [Found(Tier(code & ~EXACT), bool(code & EXACT)) for code in data]


def stub(channel: grpc.aio.Channel) -> Any:
    """The unary calls of a node; untyped as it is generated."""
    return StoreStub(channel)  # type: ignore[no-untyped-call]


def greet_to_pb() -> pb.GreetRequest:
    return pb.GreetRequest()


def watch_to_pb(heard: Heard) -> pb.WatchRequest:
    return pb.WatchRequest(incarnation=heard.incarnation, seq=heard.seq)


def news_from_pb(news: pb.IndexNews) -> News:
    """Broken if a tier or a hash makes no sense."""
    if news.tier not in _TIERS or len(news.hashes) % HASH_BYTES:
        raise Broken("a store's news make no sense")
    return News(
        Heard(news.incarnation, news.seq),
        _TIERS[news.tier],
        news.came,
        tuple(
            BlockHash(news.hashes[i : i + HASH_BYTES])
            for i in range(0, len(news.hashes), HASH_BYTES)
        ),
        is_snapshot=news.snapshot,
        is_last=not news.more,
    )


def release_to_pb(pin: int) -> pb.ReleaseRequest:
    return pb.ReleaseRequest(pin=pin)


def stats_request() -> pb.StatsRequest:
    return pb.StatsRequest()


def list_request() -> pb.ListRequest:
    return pb.ListRequest()


def verify_request() -> pb.VerifyRequest:
    return pb.VerifyRequest()


def collect_request(*, foreign: bool) -> pb.CollectRequest:
    return pb.CollectRequest(foreign=foreign)


def remove_request(tenant: str) -> pb.RemoveRequest:
    return pb.RemoveRequest(tenant=tenant)


def lookup_to_pb(
    whose: Whose, names: Sequence[BlockHash], owner: str, pin_s: float
) -> pb.LookupRequest:
    return pb.LookupRequest(
        origin=whose_to_pb(whose),
        hashes=b"".join(names),
        owner=owner,
        pin_ms=round(pin_s * 1000),
    )


def looked_up_from_pb(reply: pb.LookupReply, num: int) -> LookedUp:
    """Broken unless there is an answer for each hash."""
    try:
        blocks, anchors = found_from_pb(reply.blocks), found_from_pb(reply.anchors)
    except ValueError as error:
        raise Broken("a store answered with a tier that does not exist") from error
    if not len(blocks) == len(anchors) == num:
        raise Broken(f"a store answered {len(blocks)} of {num} hashes")
    return LookedUp(blocks, anchors, reply.pin, life_from_pb(reply.life))


def life_from_pb(life: pb.NodeLife) -> Life:
    return Life(life.incarnation, life.age_s, life.was_empty)


def right_to_bytes(whose: Whose, kind: PartKind) -> bytes:
    """The ticket with which GetBlocks reads parts of one kind."""
    return pb.ReadRight(origin=whose_to_pb(whose), kind=kind).SerializeToString()


def announcement_from_pb(up: pb.PutUp) -> Announcement:
    """BadRequest by field unless it makes sense."""
    whose = whose_from_pb(up.origin)
    retention = retention_of(up.retention)
    blocks = hashes_from_pb(up.hashes)
    if up.kind == PartKind.SLOT:
        if up.anchors or up.exact or len(set(blocks)) != len(blocks):
            raise BadRequest("slots: expected names, each once, and nothing else", param="hashes")
        slots = tuple(announced_slots(blocks, scope=whose.scope))
        return Announcement(whose, retention, slots, up.complete, up.await_disk)
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
    expected = announced(blocks, up.exact, up.anchors, parent=up.parent, first_index=up.first_index)
    return Announcement(whose, retention, tuple(expected), up.complete, up.await_disk)


def announcement_from_bytes(data: bytes) -> Announcement:
    """The first message of PutBlocks."""
    try:
        return announcement_from_pb(pb.PutUp.FromString(data))
    except DecodeError as error:
        raise BadRequest("not a PutUp message") from error


def wanted_to_pb(wanted: Sequence[Expected]) -> pb.Wanted:
    names = {
        kind: b"".join(one.name for one in wanted if one.kind is kind)
        for kind in (PartKind.BLOCK, PartKind.ANCHOR, PartKind.SLOT)
    }
    return pb.Wanted(
        blocks=names[PartKind.BLOCK], anchors=names[PartKind.ANCHOR], slots=names[PartKind.SLOT]
    )


def stored_to_pb(stored: Stored) -> pb.Stored:
    return pb.Stored(
        retention=stored.retention,
        taken=stored.taken,
        on_disk=stored.on_disk,
        dropped=stored.dropped,
    )


def stored_from_pb(stored: pb.Stored) -> Stored:
    return Stored(stored.retention, stored.taken, stored.on_disk, stored.dropped)


def right_from_pb(right: pb.ReadRight) -> tuple[Whose, PartKind]:
    """BadRequest unless it is for blocks, anchors or slots of somebody."""
    try:
        kind = PartKind(right.kind)
    except ValueError:
        kind = PartKind.TAIL
    if kind is PartKind.TAIL:
        raise BadRequest("kind: expected a block, an anchor or a slot", param="kind")
    return whose_from_pb(right.origin), kind


def right_from_bytes(ticket: bytes) -> tuple[Whose, PartKind]:
    """The ticket of GetBlocks."""
    try:
        return right_from_pb(pb.ReadRight.FromString(ticket))
    except DecodeError as error:
        raise BadRequest("not a ReadRight", param="ticket") from error


def filled_to_pb(filled: Filled) -> pb.Filled:
    return pb.Filled(
        slot=filled.slot,
        kind=filled.kind,
        hashes=b"".join(filled.names),
        crcs=filled.crcs,
        sizes=filled.sizes,
        last=filled.is_last,
    )


def filled_from_pb(filled: pb.Filled) -> Filled:
    try:
        kind = PartKind(filled.kind)
    except ValueError as error:
        raise BadRequest("kind: no such kind of part", param="kind") from error
    names = hashes_from_pb(filled.hashes) if filled.hashes else []
    return Filled(
        filled.slot, kind, tuple(names), tuple(filled.crcs), tuple(filled.sizes), filled.last
    )


def share_up_to_bytes(message: WindowOffer | Fetch | bytes | Filled | int) -> bytes:
    """What a client says over a shared window; bytes are a put's first message."""
    match message:
        case WindowOffer():
            offer = pb.Window(
                pid=message.pid,
                fd=message.fd,
                slots=message.num_slots,
                slot_bytes=message.slot_bytes,
                nonce=message.nonce,
            )
            up = pb.ShareUp(window=offer)
        case Fetch():
            right = pb.ReadRight(origin=whose_to_pb(message.whose), kind=message.kind)
            fetch = pb.Fetch(
                right=right, hashes=b"".join(message.names), part_bytes=message.part_bytes
            )
            up = pb.ShareUp(fetch=fetch)
        case bytes():
            up = pb.ShareUp(put=pb.PutUp.FromString(message))
        case Filled():
            up = pb.ShareUp(filled=filled_to_pb(message))
        case int():
            up = pb.ShareUp(freed=message)
    return up.SerializeToString()


def share_up_from_bytes(data: bytes) -> WindowOffer | Fetch | Announcement | Filled | int:
    try:
        up = pb.ShareUp.FromString(data)
    except DecodeError as error:
        raise BadRequest("not a ShareUp message") from error
    match up.WhichOneof("body"):
        case "window":
            w = up.window
            return WindowOffer(w.pid, w.fd, w.slots, w.slot_bytes, w.nonce)
        case "fetch":
            whose, kind = right_from_pb(up.fetch.right)
            names = hashes_from_pb(up.fetch.hashes)
            return Fetch(whose, kind, tuple(names), up.fetch.part_bytes)
        case "put":
            return announcement_from_pb(up.put)
        case "filled":
            return filled_from_pb(up.filled)
        case "freed":
            return up.freed
    raise BadRequest("an empty ShareUp message")


def share_down_to_bytes(message: Filled | Sequence[Expected] | Stored | int | None) -> bytes:
    """What a store says over a shared window; None is: attached."""
    match message:
        case None:
            down = pb.ShareDown(attached=pb.Attached())
        case Filled():
            down = pb.ShareDown(filled=filled_to_pb(message))
        case Stored():
            down = pb.ShareDown(stored=stored_to_pb(message))
        case int():
            down = pb.ShareDown(freed=message)
        case _:
            down = pb.ShareDown(wanted=wanted_to_pb(message))
    return down.SerializeToString()


def share_down_from_bytes(data: bytes) -> Filled | Wanted | Stored | int | None:
    try:
        down = pb.ShareDown.FromString(data)
    except DecodeError as error:
        raise Broken("a store said noise over a shared window") from error
    match down.WhichOneof("body"):
        case "attached":
            return None
        case "filled":
            return filled_from_pb(down.filled)
        case "wanted":
            return _wanted_from_pb(down.wanted)
        case "stored":
            return stored_from_pb(down.stored)
        case "freed":
            return down.freed
    raise Broken("a store said nothing over a shared window")


def put_to_bytes(
    whose: Whose,
    retention: str,
    blocks: Sequence[BlockHash],
    exact: Sequence[bool],
    anchors: Sequence[int],
    *,
    parent: bytes,
    first_index: int,
    is_complete: bool,
    await_disk: bool,
) -> bytes:
    """The first message of PutBlocks."""
    return pb.PutUp(
        origin=whose_to_pb(whose),
        retention=retention,
        complete=is_complete,
        parent=parent,
        first_index=first_index,
        hashes=b"".join(blocks),
        exact=bytes(exact),
        anchors=anchors,
        await_disk=await_disk,
    ).SerializeToString()


def put_slots_to_bytes(whose: Whose, retention: str, names: Sequence[BlockHash]) -> bytes:
    """The first message of PutBlocks, for slots."""
    return pb.PutUp(
        origin=whose_to_pb(whose), retention=retention, hashes=b"".join(names), kind=PartKind.SLOT
    ).SerializeToString()


def put_down_from_bytes(data: bytes) -> Wanted | int | Stored:
    """What a store says during a put; an int is credit in bytes."""
    try:
        down = pb.PutDown.FromString(data)
    except DecodeError as error:
        raise Broken("a store answered a put with noise") from error
    match down.WhichOneof("body"):
        case "wanted":
            return _wanted_from_pb(down.wanted)
        case "credit_bytes":
            return down.credit_bytes
        case "stored":
            return stored_from_pb(down.stored)
    raise Broken("a store answered a put with nothing")


def _wanted_from_pb(wanted: pb.Wanted) -> Wanted:
    return Wanted(_split(wanted.blocks), _split(wanted.anchors), _split(wanted.slots))


def _split(data: bytes) -> list[BlockHash]:
    return hashes_from_pb(data) if data else []


def stats_to_pb(stats: Stats) -> pb.StatsReply:
    reply = pb.StatsReply(
        node=stats.node,
        accounts=[
            pb.Account(
                tenant=a.tenant, retention=a.retention, age_days=a.age_days, size_bytes=a.size_bytes
            )
            for a in stats.accounts
        ],
        memory_bytes=stats.memory_bytes,
        memory_capacity=stats.memory_capacity,
        memory_parts=stats.memory_parts,
        disk_parts=stats.disk_parts,
        queued_bytes=stats.queued_bytes,
        counters=stats.counters,
        pins=[
            pb.Pin(
                owner=p.owner,
                reason=p.reason,
                parts=p.parts,
                left_s=p.left_s,
                leaked=p.is_leaked,
            )
            for p in stats.pins
        ],
    )
    if (disk := stats.disk) is not None:
        reply.disk.CopyFrom(
            pb.Balance(
                capacity=disk.capacity,
                live=disk.live,
                dead=disk.dead,
                pinned=disk.pinned,
                reserved=disk.reserved,
            )
        )
    return reply


def stats_from_pb(reply: pb.StatsReply) -> Stats:
    d = reply.disk
    return Stats(
        node=reply.node,
        accounts=tuple(
            Account(a.tenant, a.retention, a.age_days, a.size_bytes) for a in reply.accounts
        ),
        disk=(
            Balance(d.capacity, d.live, d.dead, d.pinned, d.reserved)
            if reply.HasField("disk")
            else None
        ),
        memory_bytes=reply.memory_bytes,
        memory_capacity=reply.memory_capacity,
        memory_parts=reply.memory_parts,
        disk_parts=reply.disk_parts,
        queued_bytes=reply.queued_bytes,
        counters=dict(reply.counters),
        pins=tuple(
            PinRow(p.owner, p.reason, p.parts, p.left_s, is_leaked=p.leaked) for p in reply.pins
        ),
    )


def segment_to_pb(row: SegmentRow) -> pb.SegmentRow:
    return pb.SegmentRow(
        name=row.name,
        tenant=row.tenant,
        retention=row.retention,
        day=row.day,
        namespace=row.namespace,
        parts=row.parts,
        live_bytes=row.live_bytes,
        size_bytes=row.size_bytes,
        growing=row.is_growing,
        encrypted=row.is_encrypted,
    )


def segment_from_pb(row: pb.SegmentRow) -> SegmentRow:
    return SegmentRow(
        name=row.name,
        tenant=row.tenant,
        retention=row.retention,
        day=row.day,
        namespace=row.namespace,
        parts=row.parts,
        live_bytes=row.live_bytes,
        size_bytes=row.size_bytes,
        is_growing=row.growing,
        is_encrypted=row.encrypted,
    )
