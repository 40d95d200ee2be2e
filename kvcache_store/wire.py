"""The store's values to and from protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreStub
from diptych.core.blocks import HASH_BYTES
from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Found, Origin, Tier
from diptych.kvcache_store.ledger import Balance
from diptych.kvcache_store.report import Account, PinRow, SegmentRow, Stats
from diptych.transport.frames import PartKind

EXACT = 0x80
MOST_HASHES = 65_536  # of one message: a million tokens are 8,192 blocks
MOST_TENANT_CHARS = 128


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose bytes, as a worker says it."""

    namespace: bytes
    layout_hash: bytes
    scope: bytes
    tenant: str


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a node."""

    incarnation: int
    age_s: float
    was_empty: bool


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A node's answer, for each hash that was asked."""

    blocks: list[Found]
    anchors: list[Found]
    pin: int
    life: Life


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node lacks of what was announced."""

    blocks: list[BlockHash]
    anchors: list[BlockHash]
    slots: list[BlockHash]


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of what was sent, in parts."""

    retention: str
    in_memory: int
    on_disk: int
    dropped: int


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
            wanted = down.wanted
            return Wanted(_split(wanted.blocks), _split(wanted.anchors), _split(wanted.slots))
        case "credit_bytes":
            return down.credit_bytes
        case "stored":
            s = down.stored
            return Stored(s.retention, s.in_memory, s.on_disk, s.dropped)
    raise Broken("a store answered a put with nothing")


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
