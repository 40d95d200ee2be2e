"""The cache tier as workers meet it: over loopback, one node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from diptych.contract import store_pb2 as pb
from diptych.contract import worker_pb2
from diptych.contract.store_pb2_grpc import StoreStub
from diptych.core.errors import BadRequest, Refused
from diptych.core.ids import BlockHash, WorkerId
from diptych.engine.tier import Owner
from diptych.kvcache_store.client import (
    Outcome,
    Retention,
    StoreClient,
    StoreTier,
    Tier,
    Transport,
)
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.retention import DAY_S
from diptych.kvcache_store.volume import Folder
from diptych.testing.clock import FakeClock
from diptych.testing.stores import RunningStore, Shelf, Text, bring, running_store, whose_of
from diptych.testing.volumes import PoorVolume
from diptych.transport.channel import call, connect
from diptych.transport.errors import from_rpc
from diptych.transport.frames import Fault, Part, PartKind, checksum, encode

PUT = "/diptych.contract.Store/PutBlocks"
PROMPT = Text("alice", range(40))


@asynccontextmanager
async def tier_over(
    transport: Transport, folder: Path, **more: Any
) -> AsyncIterator[tuple[RunningStore, StoreClient]]:
    async with running_store(folder, **more) as store:
        client = StoreClient(
            [store.address], WorkerId("prefill-1"), lookup_s=2.0, transport=transport
        )
        try:
            yield store, client
        finally:
            await client.close()


TierOver = Callable[..., AbstractAsyncContextManager[tuple[RunningStore, StoreClient]]]


@pytest.fixture(params=[Transport.GRPC, Transport.SHM])
def tier(request: pytest.FixtureRequest) -> TierOver:
    """A store and a client, over each transport."""
    return partial(tier_over, request.param)


async def put(client: StoreClient, *args: Any, **more: Any) -> Outcome:
    text, *rest = args
    return await client.put(text.run(*rest, **more), deadline_s=10, await_disk=True)


async def test_what_one_worker_puts_another_gets(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (store, client):
        outcome = await put(client, PROMPT, anchors=[37, 39])
        assert outcome == Outcome(sent=42, on_disk=42, dropped=0)
        other = StoreClient([store.address], WorkerId("prefill-2"), lookup_s=2.0)
        brought = await bring(other, PROMPT)
        assert set(brought.blocks) == set(range(40))
        assert set(brought.anchors) == {37, 39}
        await other.close()
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        assert (hit.end, hit.num_in(Tier.MEMORY)) == (40, 40)


async def test_disk_answers_after_a_restart_and_then_memory(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT, anchors=[39])
    async with tier(tmp_path) as (store, client):
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        assert (hit.end, hit.num_in(Tier.DISK), list(hit.anchors)) == (40, 40, [39])
        assert (await bring(client, PROMPT)).num_leading == 40
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        assert hit.num_in(Tier.MEMORY) == 40  # promoted by reading
        assert store.tiers.counts.read[Tier.DISK] == 41


async def test_only_what_nobody_has_is_sent(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (store, client):
        await put(client, PROMPT, 0, 25)
        outcome = await put(client, PROMPT, anchors=[30])
        assert outcome.sent == 16
        assert store.tiers.counts.put == 41
        assert await put(client, PROMPT, anchors=[30]) == Outcome()


async def test_a_look_up_may_begin_behind_what_the_worker_has(
    tmp_path: Path, tier: TierOver
) -> None:
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT)
        hit = await client.lookup(PROMPT.whose, PROMPT.chain, start=19)
        assert (hit.start, hit.end) == (19, 40)
        shelf = Shelf(PartKind.BLOCK, 1000)
        fetched = await client.get(hit, PartKind.BLOCK, [19, 20, 30], shelf, deadline_s=5)
        assert fetched.done == {19, 20, 30}


async def test_a_hit_ends_at_the_first_gap(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT, 0, 10)
        await put(client, PROMPT, 11, 40, anchors=[20])
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        assert (hit.end, hit.anchors) == (10, {})


async def test_deterministic_requests_see_exact_blocks_only(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT, 0, 10)
        await put(client, PROMPT, 10, 20, exact=False)
        whose, chain = PROMPT.whose, PROMPT.chain
        assert (await client.lookup(whose, chain)).end == 20
        assert (await client.lookup(whose, chain, exact_only=True)).end == 10


async def test_an_anchor_of_cut_windows_is_not_one_of_an_exact_block(
    tmp_path: Path, tier: TierOver
) -> None:
    """Workers of both modes may share a tier: each of them may have put one of the two."""
    async with tier(tmp_path) as (store, client):
        await put(client, PROMPT, 0, 10, anchors=[4])
        await put(client, PROMPT, 0, 12, exact=False, anchors=[9, 11])
        whose = PROMPT.whose
        engines = StoreTier([store.address], WorkerId("prefill-2"))
        engines.bind(whose.namespace, whose.layout_hash)
        found = await engines.find(Owner(whose.tenant, whose.scope, "chat"), PROMPT.chain, 0)
        anchored = [index for index, block in enumerate(found.stored) if block.has_anchor]
        assert (len(found.stored), anchored) == (12, [4, 11])
        await engines.close()


async def test_k7_the_same_prompt_of_another_tenant_is_nowhere(
    tmp_path: Path, tier: TierOver
) -> None:
    bobs = Text("bob", PROMPT.tokens)
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT, anchors=[39])
        assert (await client.lookup(bobs.whose, bobs.chain)).end == 0
        # Nor with the hashes of the first tenant's blocks.
        assert (await client.lookup(bobs.whose, PROMPT.chain)).end == 0
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        stolen = type(hit)(bobs.whose, hit.chain, 0, hit.blocks, hit.anchors)
        shelf = Shelf(PartKind.BLOCK, 1000)
        assert not (await client.get(stolen, PartKind.BLOCK, [0], shelf, deadline_s=5)).done
        # Nor under the tenant's scope by another name.
        whose = whose_of("alice")
        forged = type(whose)(whose.namespace, whose.layout_hash, whose.scope, "mallory")
        assert (await client.lookup(forged, PROMPT.chain)).end == 0


async def test_k1_a_part_that_cannot_be_read_is_never_counted_as_loaded(
    tmp_path: Path, tier: TierOver
) -> None:
    text = Text("alice", range(8))
    async with tier(tmp_path) as (_, client):
        await put(client, text)
    (path,) = (tmp_path / "segments").glob("*.seg")
    data = bytearray(path.read_bytes())
    data[data.index(bytes(text.item(3).payload)) + 100] ^= 4
    path.write_bytes(data)
    async with tier(tmp_path) as (store, client):
        hit = await client.lookup(text.whose, text.chain)
        assert hit.end == 8
        brought = await bring(client, text)
        assert brought.num_leading == 3
        assert set(brought.blocks) == {0, 1, 2}
        assert store.tiers.disk is not None
        assert store.tiers.disk.reader.counts.corrupt == 1
        assert client.weights  # a damaged block is not a lost node
        assert (await client.lookup(text.whose, text.chain)).end == 3
        await put(client, text, 3, 4)  # computed again
        assert (await bring(client, text)).num_leading == 8


async def test_k4_without_its_anchor_a_prefix_is_found_up_to_the_anchor_before(
    tmp_path: Path,
    tier: TierOver,
) -> None:
    async with tier(tmp_path) as (_, client):
        await put(client, PROMPT, anchors=[20, 39])
    (path,) = (tmp_path / "segments").glob("*.seg")
    data = path.read_bytes()
    at = data.index(bytes(PROMPT.item(39, PartKind.ANCHOR).payload))
    path.write_bytes(data[:at] + bytes(1000) + data[at + 1000 :])
    async with tier(tmp_path) as (_, client):
        brought = await bring(client, PROMPT)
        assert set(brought.anchors) == {20}
        assert brought.num_leading == 40
        assert list((await client.lookup(PROMPT.whose, PROMPT.chain)).anchors) == [20]


@pytest.mark.parametrize(
    ("alter", "fault"),
    [
        (lambda f: f[:-1] + bytes([f[-1] ^ 1]), Fault.CHECKSUM),
        (lambda f: f[:-1], Fault.LENGTH),
        (lambda f: f[:8] + b"\x05" + f[9:], Fault.SEQUENCE),
        (lambda f: f[:20] + bytes(16) + f[36:], Fault.UNKNOWN),
        (lambda f: b"noise", Fault.LENGTH),
    ],
)
async def test_a_damaged_frame_is_refused_and_nothing_of_it_is_kept(
    tmp_path: Path, tier: TierOver, alter: Any, fault: Fault
) -> None:
    async with tier(tmp_path) as (store, client):
        stream: Any = connect(store.address).stream_stream(PUT)()
        await stream.write(announcement(PROMPT, 8))
        assert pb.PutDown.FromString(await stream.read()).WhichOneof("body") == "wanted"
        parts = [PROMPT.item(i).part for i in range(8)]
        await stream.write(alter(encode(0, parts, is_last=True)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert from_rpc(caught.value).code == fault
        assert (await client.lookup(PROMPT.whose, PROMPT.chain)).end == 0


def announcement(text: Text, count: int, **changes: Any) -> bytes:
    whose = text.whose
    fields: dict[str, Any] = {
        "origin": pb.Origin(
            namespace=whose.namespace,
            layout_hash=whose.layout_hash,
            scope=whose.scope,
            tenant=whose.tenant,
        ),
        "retention": "chat",
        "complete": True,
        "parent": whose.scope,
        "hashes": b"".join(text.chain[:count]),
        "exact": bytes(count),
    }
    return pb.PutUp(**(fields | changes)).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"retention": "for ever"}, "retention"),
        ({"hashes": b"short"}, "hashes"),
        ({"hashes": b""}, "hashes"),
        ({"hashes": bytes(64)}, "hashes"),
        ({"exact": b"\x01"}, "exact"),
        ({"parent": b""}, "parent"),
        ({"anchors": [4]}, "anchors"),
        ({"origin": pb.Origin()}, "namespace"),
        (
            {"origin": pb.Origin(namespace=bytes(16), layout_hash=bytes(16), scope=bytes(16))},
            "tenant",
        ),
    ],
)
async def test_a_put_that_makes_no_sense_is_refused_by_field(
    tmp_path: Path, tier: TierOver, changes: dict[str, Any], param: str
) -> None:
    async with tier(tmp_path) as (store, _):
        stream: Any = connect(store.address).stream_stream(PUT)()
        await stream.write(announcement(PROMPT, 4, **changes))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        error = from_rpc(caught.value)
        assert isinstance(error, BadRequest)
        assert error.param == param
        assert "for ever" not in error.message


async def test_a_put_that_falls_silent_is_ended_and_what_came_is_kept(
    tmp_path: Path, tier: TierOver
) -> None:
    async with tier(tmp_path, silence_s=0.2) as (store, client):
        stream: Any = connect(store.address).stream_stream(PUT)()
        await stream.write(announcement(PROMPT, 16))
        await stream.read()
        await stream.write(encode(0, [PROMPT.item(i).part for i in range(8)], is_last=False))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(5):
                while await stream.read() is not grpc.aio.EOF:
                    pass
        assert from_rpc(caught.value).code == "transfer_silent"
        assert (await client.lookup(PROMPT.whose, PROMPT.chain)).end == 8


async def test_a_ticket_that_is_no_read_right_is_refused(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (store, _):
        stream: Any = connect(store.address).stream_stream("/diptych.contract.Blocks/GetBlocks")()
        want = worker_pb2.WantBlocks(ticket=b"\xff\xff", worker_id="w", hashes=bytes(16))
        await stream.write(worker_pb2.BlocksUp(want=want).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert from_rpc(caught.value).param == "ticket"


async def test_another_layout_under_the_same_namespace_is_refused(
    tmp_path: Path, tier: TierOver
) -> None:
    async with tier(tmp_path) as (store, client):
        await put(client, PROMPT)
        whose = PROMPT.whose
        other = type(whose)(whose.namespace, b"another layout !", whose.scope, whose.tenant)
        assert (await client.lookup(other, PROMPT.chain)).end == 0
        stub: Any = StoreStub(connect(store.address))  # type: ignore[no-untyped-call]
        request = pb.LookupRequest(
            origin=pb.Origin(
                namespace=other.namespace,
                layout_hash=other.layout_hash,
                scope=other.scope,
                tenant=other.tenant,
            ),
            hashes=bytes(16),
        )
        with pytest.raises(Refused, match="another layout"):
            await call(stub.Lookup, request, timeout_s=5)
        assert client.weights


async def test_zero_retention_leaves_nothing_anywhere(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path) as (store, client):
        assert await put(client, PROMPT, retention=Retention.NONE) == Outcome()
        stream: Any = connect(store.address).stream_stream(PUT)()
        await stream.write(announcement(PROMPT, 4, retention="none"))
        assert not pb.PutDown.FromString(await stream.read()).wanted.blocks
        assert pb.PutDown.FromString(await stream.read()).stored.retention == "none"
        assert len(store.tiers.memory) == 0
    assert not list((tmp_path / "segments").glob("*.seg"))
    assert not list((tmp_path / "tenants").iterdir())


async def test_k10_probing_renews_nothing_and_reading_does(tmp_path: Path, tier: TierOver) -> None:
    clock = FakeClock(20_000.5 * DAY_S)
    probed, read = Text("alice", range(8)), Text("bob", range(8))
    async with tier(tmp_path, clock=clock) as (store, client):
        await put(client, probed, retention=Retention.AGENT)
        await put(client, read, retention=Retention.AGENT)
        clock.advance(3 * DAY_S)
        for _ in range(20):
            assert (await client.lookup(probed.whose, probed.chain)).end == 8
        assert (await bring(client, read)).num_leading == 8
        clock.advance(2 * DAY_S)
        await store.caretaker.sweep(hurry=True)
        assert (await client.lookup(probed.whose, probed.chain)).end == 0
        assert (await client.lookup(read.whose, read.chain)).end == 8


async def test_an_unfinished_turn_reaches_the_disk_when_it_is_touched_again(
    tmp_path: Path,
    tier: TierOver,
) -> None:
    async with tier(tmp_path) as (store, client):
        await put(client, PROMPT, is_complete=False)
        await store.tiers.flush()
        disk = store.tiers.disk
        assert disk is not None
        assert disk.segments.num_parts == 0
        assert (await bring(client, PROMPT)).num_leading == 40
        await store.tiers.flush()
        assert disk.segments.num_parts == 40


async def test_memory_gives_way_tail_first_and_the_disk_still_has_it(
    tmp_path: Path, tier: TierOver
) -> None:
    async with tier(tmp_path, memory_bytes=30_000) as (store, client):
        await put(client, PROMPT)
        hit = await client.lookup(PROMPT.whose, PROMPT.chain)
        assert hit.end == 40
        assert 0 < hit.num_in(Tier.MEMORY) <= 30
        assert store.tiers.memory.used_bytes <= 30_000
        assert (await bring(client, PROMPT)).num_leading == 40


async def test_without_a_disk_a_broken_promise_is_counted(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path, memory_bytes=30_000, disk_bytes=0) as (store, client):
        await put(client, PROMPT, 0, 20)
        assert await put(client, PROMPT, 20, 40) == Outcome(sent=20)
        assert store.tiers.counts.violated_bytes[Retention.CHAT] >= 10_000
        large = Text("bob", range(3), size_bytes=31_000)
        assert await put(client, large) == Outcome(sent=3, dropped=3)


async def test_f15_a_slow_disk_costs_writes_and_never_an_answer(
    tmp_path: Path, tier: TierOver
) -> None:
    volume = PoorVolume(Folder(tmp_path / "segments"), bytes_a_second=1 << 20)
    big = Text("alice", range(64), size_bytes=50_000)
    async with tier(
        tmp_path, volume=volume, queue_bytes=400_000, memory_bytes=1 << 20, read_s=0.3
    ) as (store, client):
        began_s = asyncio.get_running_loop().time()
        outcome = await client.put(big.run(), deadline_s=10)  # write-behind: nobody waits
        assert outcome.sent == 64
        assert asyncio.get_running_loop().time() - began_s < 2.0
        assert store.tiers.queue is not None
        assert store.tiers.queue.counts.dropped_full > 20
        assert store.tiers.queue.queued_bytes <= 400_000
        volume.bytes_a_second = 100_000
        began_s = asyncio.get_running_loop().time()
        await bring(client, big, deadline_s=1.0)
        assert asyncio.get_running_loop().time() - began_s < 2 * (2 + 1.0 + 1.0)
        assert client.weights
        volume.bytes_a_second = None


async def test_f15_a_full_volume_drops_and_counts(tmp_path: Path, tier: TierOver) -> None:
    volume = PoorVolume(Folder(tmp_path / "segments"), room_bytes=20_000)
    async with tier(tmp_path, volume=volume) as (store, client):
        outcome = await put(client, PROMPT)
        assert store.tiers.queue is not None
        assert store.tiers.queue.counts.dropped_room == outcome.dropped > 0
        assert (await bring(client, PROMPT)).num_leading == 40  # memory has it
        volume.room_bytes = None
        assert (await bring(client, PROMPT)).num_leading == 40  # touched: tries again
        await store.tiers.flush()
        assert store.tiers.disk is not None
        assert store.tiers.disk.segments.num_parts == 40


async def test_pins_hold_until_released_or_their_deadline(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path, memory_bytes=40_000, disk_bytes=0) as (store, client):
        text = Text("alice", range(20))
        await put(client, text)
        hit = await client.lookup(text.whose, text.chain, pin_s=30.0)
        (pin,) = store.tiers.pins.all()
        assert (pin.owner, pin.reason, len(pin.names)) == ("prefill-1", "lookup", 20)
        await put(client, Text("bob", range(60)))
        assert (await client.lookup(text.whose, text.chain)).end == 20
        await client.release(hit)
        assert len(store.tiers.pins) == 0
        await put(client, Text("bob", range(60, 120)))
        assert (await client.lookup(text.whose, text.chain)).end < 20
        await client.lookup(text.whose, text.chain, pin_s=0.05)
        bobs = Text("bob", range(60, 120))
        await client.lookup(bobs.whose, bobs.chain, pin_s=0.05)
        await asyncio.sleep(0.2)
        assert len(store.tiers.pins) == 0
        assert store.tiers.counts.lapsed_pins >= 1


async def test_an_encrypted_store_serves_the_same_bytes(tmp_path: Path, tier: TierOver) -> None:
    async with tier(tmp_path, encrypt=True) as (_, client):
        await put(client, PROMPT, anchors=[39])
    async with tier(tmp_path, encrypt=True) as (_, client):
        brought = await bring(client, PROMPT)
        assert (brought.num_leading, set(brought.anchors)) == (40, {39})
    files = b"".join(path.read_bytes() for path in (tmp_path / "segments").iterdir())
    assert bytes(PROMPT.item(7).payload[:50]) not in files


async def test_pinning_beyond_the_quota_is_granted_as_chat_and_says_so(
    tmp_path: Path, tier: TierOver
) -> None:
    quotas = Quotas(class_bytes={Retention.PINNED: 30_000})
    async with tier(tmp_path, quotas=quotas) as (store, client):
        await put(client, PROMPT, 0, 20, retention=Retention.PINNED)
        await put(client, Text("bob", range(40)), retention=Retention.PINNED)
        await put(client, Text("carol", range(40)))
        await put(client, Text("carol", range(40)), retention=Retention.PINNED)  # is there already
        disk = store.tiers.disk
        assert disk is not None
        assert 20_000 <= disk.segments.ledger.of_class(Retention.PINNED) <= 30_000
        assert disk.segments.num_parts == 100


SLOT = BlockHash(b"s" * 16)


def slot(payload: bytes, name: BlockHash = SLOT) -> Part:
    return Part(PartKind.SLOT, name, checksum(payload), memoryview(payload))


async def test_a_slot_is_kept_in_memory_under_its_name_and_for_its_owner(
    tmp_path: Path, tier: TierOver
) -> None:
    payload = bytes(range(250)) * 400
    async with tier(tmp_path) as (store, client):
        assert await client.put_slot(PROMPT.whose, slot(payload), Retention.CHAT, deadline_s=5)
        shelf = Shelf(PartKind.SLOT, len(payload))
        assert await client.get_slot(PROMPT.whose, SLOT, shelf, deadline_s=5)
        assert bytes(shelf.place(SLOT).into) == payload
        for whose, name in ((whose_of("bob"), SLOT), (PROMPT.whose, BlockHash(b"t" * 16))):
            other = Shelf(PartKind.SLOT, len(payload))
            assert not await client.get_slot(whose, name, other, deadline_s=5)
        assert not len(store.tiers.memory)
        await store.desk.remove("alice")
        assert not await client.get_slot(PROMPT.whose, SLOT, shelf, deadline_s=5)
        assert client.counts.lookups_failed == 0 and all(client.weights.values())


async def test_slots_never_take_more_than_their_part_and_the_oldest_go(
    tmp_path: Path, tier: TierOver
) -> None:
    names = [BlockHash(bytes([i]) * 16) for i in range(6)]
    async with tier(tmp_path, memory_bytes=1 << 20) as (store, client):
        for number, name in enumerate(names):
            part = slot(bytes([number]) * 100_000, name)
            assert await client.put_slot(PROMPT.whose, part, Retention.CHAT, deadline_s=5)
        shelves = [Shelf(PartKind.SLOT, 100_000) for _ in names]
        found = [
            await client.get_slot(PROMPT.whose, name, shelf, deadline_s=5)
            for name, shelf in zip(names, shelves, strict=True)
        ]
        assert found == [False, False, False, False, True, True]
        assert store.tiers.slots.used_bytes <= 1 << 18


async def test_a_slot_of_a_request_that_keeps_nothing_is_not_kept(
    tmp_path: Path, tier: TierOver
) -> None:
    async with tier(tmp_path) as (store, client):
        assert not await client.put_slot(PROMPT.whose, slot(b"x"), Retention.NONE, deadline_s=5)
        assert not len(store.tiers.slots)
