"""Several nodes are one tier: a lost one is misses, a frozen one costs one deadline."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from diptych.core.ids import WorkerId
from diptych.engine.tier import Kept, Owner
from diptych.kvcache_store.client import Outcome, StoreClient, StoreTier
from diptych.kvcache_store.placement import RAMP_S, ranked, segment_key
from diptych.kvcache_store.volume import Folder
from diptych.testing.clock import FakeClock, settle
from diptych.testing.stores import RunningStore, Shelf, Text, bring, running_store
from diptych.testing.volumes import PoorVolume
from diptych.transport.frames import PartKind

WORKER = WorkerId("prefill-1")
LOOKUP_S = 1.0
SLOW_S = 1.0  # that a busy machine may add


@asynccontextmanager
async def three(
    folder: Path, clock: Callable[[], float] = time.time
) -> AsyncIterator[tuple[list[RunningStore], list[AsyncExitStack]]]:
    """Nodes that can be ended one by one."""
    ends = [AsyncExitStack() for _ in range(3)]
    nodes = [
        await end.enter_async_context(
            running_store(folder / str(i), incarnation=i + 1, clock=clock)
        )
        for i, end in enumerate(ends)
    ]
    try:
        yield nodes, ends
    finally:
        for end in ends:
            await end.aclose()


def client_of(nodes: list[RunningStore], **more: Any) -> StoreClient:
    return StoreClient([n.address for n in nodes], WORKER, **({"lookup_s": LOOKUP_S} | more))


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_long_chain_is_spread_and_comes_back_whole(tmp_path: Path) -> None:
    text = Text("alice", range(320))
    async with three(tmp_path) as (nodes, _):
        client = client_of(nodes)
        outcome = await client.put(text.run(anchors=[100, 319]), deadline_s=10, await_disk=True)
        assert outcome == Outcome(sent=322, on_disk=322)
        sizes = [len(node.tiers.memory) for node in nodes]
        assert sum(sizes) == 322
        assert min(sizes) > 0
        brought = await bring(client, text)
        assert brought.num_leading == 320
        assert set(brought.anchors) == {100, 319}
        await client.close()


async def test_conversations_with_the_same_beginning_share_its_blocks(tmp_path: Path) -> None:
    one, other = Text("alice", range(64)), Text("alice", [*range(48), *range(500, 520)])
    async with three(tmp_path) as (nodes, _):
        client = client_of(nodes)
        await client.put(one.run(), deadline_s=10)
        assert (await client.lookup(other.whose, other.chain)).end == 48
        outcome = await client.put(other.run(), deadline_s=10)
        assert outcome.sent == 20
        assert (await bring(client, other)).num_leading == 68
        await client.close()


async def test_a_lost_node_is_misses_and_nothing_else(tmp_path: Path) -> None:
    text = Text("alice", range(320))
    async with three(tmp_path) as (nodes, ends):
        client = client_of(nodes)
        await client.put(text.run(), deadline_s=10)
        weights = {node.address: 1.0 for node in nodes}
        owners = [ranked(weights, segment_key(text.chain, i))[0] for i in range(320)]
        lost = nodes[1]
        await ends[1].aclose()
        first_lost = owners.index(lost.address)
        for _ in range(2):  # when it is met, and when it is known
            hit = await client.lookup(text.whose, text.chain)
            assert hit.end == first_lost
        assert list(client.weights) == [nodes[0].address, nodes[2].address]
        assert (await bring(client, text)).num_leading == first_lost
        # The others take its share over.
        assert (await client.put(text.run(), deadline_s=10)).dropped == 0
        assert (await bring(client, text)).num_leading == 320
        await client.close()


async def test_f13_a_tier_that_is_down_costs_one_deadline_and_then_nothing(tmp_path: Path) -> None:
    text = Text("alice", range(64))
    loop = asyncio.get_running_loop()
    async with silent() as address:
        client = StoreClient([address], WORKER, lookup_s=0.1)
        began_s = loop.time()
        assert (await client.lookup(text.whose, text.chain)).end == 0
        assert loop.time() - began_s < 2 * (0.1 + SLOW_S)
        began_s = loop.time()
        for _ in range(20):
            assert (await client.lookup(text.whose, text.chain)).end == 0
            assert await client.put(text.run(), deadline_s=5) == Outcome(dropped=64)
        assert loop.time() - began_s < 2 * SLOW_S  # nobody is asked
        assert client.counts.lookups_failed == 1
        assert client.counts.parts_dropped == 20 * 64
        await client.close()


async def test_f13_a_tier_that_falls_silent_in_a_fetch_ends_it_at_its_deadline(
    tmp_path: Path,
) -> None:
    text = Text("alice", range(64))
    loop = asyncio.get_running_loop()
    async with running_store(tmp_path) as store, silent() as address:
        alone = client_of([store])
        await alone.put(text.run(), deadline_s=5)
        hit = await alone.lookup(text.whose, text.chain)
        await alone.close()
        assert hit.end == 64
        client = StoreClient([store.address, address], WORKER)
        moved = type(hit)(
            hit.whose,
            hit.chain,
            0,
            tuple(type(p)(address, p.found) if i == 9 else p for i, p in enumerate(hit.blocks)),
            {},
        )
        began_s = loop.time()
        shelf = Shelf(PartKind.BLOCK, 1000)
        fetched = await client.get(moved, PartKind.BLOCK, range(64), shelf, deadline_s=0.3)
        assert loop.time() - began_s < 2 * (0.3 + SLOW_S)
        assert fetched.num_leading == 9
        assert len(fetched.done) == 63
        await client.close()


async def test_a_node_that_comes_back_is_used_again(tmp_path: Path) -> None:
    text = Text("alice", range(64))
    async with running_store(tmp_path) as store:
        address = store.address
        client = StoreClient([address], WORKER, lookup_s=LOOKUP_S)
        await client.put(text.run(), deadline_s=10, await_disk=True)
    assert (await client.lookup(text.whose, text.chain)).end == 0
    assert client.weights == {}
    async with running_store(tmp_path, listen=address, incarnation=8):
        await settle(lambda: address in client.weights, within_s=10)
        assert (await bring(client, text)).num_leading == 64
        assert client.weights[address] == 1.0  # it had kept its disk
        await client.close()


async def hear_all(client: StoreClient) -> None:
    """Nodes that are asked tell how old they are; who is asked depends on addresses, by chance."""
    for number in range(100):
        text = Text(f"tenant-{number}", range(64))
        await client.lookup(text.whose, text.chain)


async def test_k12_a_node_that_returns_empty_takes_little_at_first(tmp_path: Path) -> None:
    clock = FakeClock()
    async with three(tmp_path, clock) as (nodes, _):
        client = client_of(nodes)
        for node in nodes[:2]:
            node.tiers.was_empty = False
        probe = Text("alice", range(16 * 40))
        await hear_all(client)
        returned = nodes[2].address
        assert client.weights[returned] < 0.2
        await client.put(probe.run(), deadline_s=20)
        shares = [len(node.tiers.memory) for node in nodes]
        assert shares[2] < 0.5 * min(shares[:2])
        assert (await bring(client, probe)).num_leading == len(probe.tokens)
        clock.advance(RAMP_S)
        await hear_all(client)
        assert client.weights[returned] == 1.0
        # What was put elsewhere while it ramped is found at the second best node.
        hit = await client.lookup(probe.whose, probe.chain)
        assert hit.end > 0.9 * len(probe.tokens)
        await client.close()


async def test_more_than_may_be_under_way_is_dropped_at_once(tmp_path: Path) -> None:
    text = Text("alice", range(64))
    async with running_store(tmp_path) as store:
        client = client_of([store], unsent_bytes=100_000)
        both = await asyncio.gather(
            client.put(text.run(), deadline_s=5),
            client.put(Text("bob", range(64)).run(), deadline_s=5),
        )
        assert both == [Outcome(sent=64), Outcome(dropped=64)]
        assert (await client.put(Text("bob", range(64)).run(), deadline_s=5)).sent == 64
        await client.close()


async def test_nodes_come_and_go_at_run_time(tmp_path: Path) -> None:
    text = Text("alice", range(320))
    async with three(tmp_path) as (nodes, _):
        first, second, third = nodes
        for node in nodes:
            node.tiers.was_empty = False
        client = client_of([])
        assert await client.put(text.run(), deadline_s=10) == Outcome(dropped=320)
        client.use([first.address])
        assert (await client.put(text.run(0, 160), deadline_s=10)).sent == 160
        client.use([node.address for node in nodes])
        assert (await client.put(text.run(160), deadline_s=10)).sent == 160
        assert min(len(node.tiers.memory) for node in nodes) > 0
        hit = await client.lookup(text.whose, text.chain, pin_s=5)
        client.use([second.address, third.address])
        assert sorted(client.weights) == sorted([second.address, third.address])
        # What was found at a node that has left is a miss; the rest is fetched.
        shelf = Shelf(PartKind.BLOCK, 1000)
        found = range(hit.start, hit.end)
        fetched = await client.get(hit, PartKind.BLOCK, found, shelf, deadline_s=5)
        assert fetched.done == {i for i in found if hit.blocks[i].node != first.address}
        await client.release(hit)
        client.use([first.address, second.address, third.address])
        assert (await client.lookup(text.whose, text.chain)).end == hit.end
        await client.close()


async def test_a_node_that_is_used_no_more_finishes_what_is_under_way(tmp_path: Path) -> None:
    text = Text("alice", range(64))
    volume = PoorVolume(Folder(tmp_path / "segments"), bytes_a_second=200_000)
    async with running_store(tmp_path, volume=volume) as store:
        client = client_of([store])
        putting = asyncio.create_task(client.put(text.run(), deadline_s=10, await_disk=True))
        await settle(lambda: len(store.tiers.memory) == 64)
        client.use([])
        assert (await client.lookup(text.whose, text.chain)).end == 0
        assert len(client._leaving) == 1
        assert not putting.done()
        assert await putting == Outcome(sent=64, on_disk=64)
        await settle(lambda: not client._leaving)
        await client.close()


async def test_an_engines_tier_begins_with_no_node_and_takes_those_that_come(
    tmp_path: Path,
) -> None:
    text = Text("alice", range(20))
    owner = Owner("alice", text.whose.scope, "chat")
    async with running_store(tmp_path) as store:
        tier = StoreTier([], WORKER, lookup_s=LOOKUP_S)
        tier.bind(text.whose.namespace, text.whose.layout_hash)
        assert not tier.has_room(3)  # so nothing is copied for nobody
        assert tier.parts_dropped == 3
        assert (await tier.find(owner, text.chain, 0)).stored == ()
        tier.use([store.address])
        assert tier.has_room(20)
        payloads = [bytes(text.item(i).payload) for i in range(20)]
        tier.keep([Kept(owner, text.chain, i, False, True, p) for i, p in enumerate(payloads)])
        await tier.flush(within_s=10)
        assert len((await tier.find(owner, text.chain, 0)).stored) == 20
        tier.use([])
        assert (await tier.find(owner, text.chain, 0)).stored == ()
        await tier.close()
