"""F16: whoever follows the index of a store ends with what the store has, whatever was missed."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreStub
from diptych.core.blocks import HASH_BYTES
from diptych.core.ids import BlockHash, WorkerId
from diptych.kvcache_store.client import StoreClient
from diptych.testing.clock import settle
from diptych.testing.stores import RunningStore, Text, running_store
from diptych.transport.channel import connect


class Follower:
    """An index of one store, as a router keeps it."""

    def __init__(self, address: str) -> None:
        self.tiers: dict[str, set[bytes]] = {"memory": set(), "disk": set()}
        self.incarnation = self.seq = 0
        self.snapshots = 0
        self._channel = connect(address)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await self._channel.close()

    async def _follow(self) -> None:
        stub: Any = StoreStub(self._channel)  # type: ignore[no-untyped-call]
        request = pb.WatchRequest(incarnation=self.incarnation, seq=self.seq)
        async for news in stub.Watch(request):
            self.hear(news)

    def hear(self, news: pb.IndexNews) -> None:
        if news.snapshot:
            self.snapshots += 1
            for names in self.tiers.values():
                names.clear()
        elif not news.more and news.incarnation == self.incarnation:
            assert news.seq in (self.seq, self.seq + 1)  # of a snapshot's last page, or the next
        self.incarnation, self.seq = news.incarnation, news.seq
        for i in range(0, len(news.hashes), HASH_BYTES):
            name = news.hashes[i : i + HASH_BYTES]
            if news.came:
                self.tiers[news.tier].add(name)
            else:
                self.tiers[news.tier].discard(name)


def truth(store: RunningStore) -> dict[str, set[bytes]]:
    assert store.tiers.disk is not None
    return {
        "memory": set(store.tiers.memory.blocks()),
        "disk": set(store.tiers.disk.segments.blocks()),
    }


async def agree(follower: Follower, store: RunningStore) -> None:
    await store.tiers.flush()
    await settle(lambda: follower.tiers == truth(store), within_s=5)


async def put(store: RunningStore, texts: Sequence[Text]) -> None:
    client = StoreClient([store.address], WorkerId("w"), lookup_s=5)
    for text in texts:
        await client.put(text.run(), deadline_s=10, await_disk=True)
    await client.close()


async def test_a_new_follower_gets_a_snapshot_and_then_the_news(tmp_path: Path) -> None:
    async with running_store(tmp_path, memory_bytes=60_000) as store:
        await put(store, [Text("alice", range(40))])
        follower = Follower(store.address)
        follower.start()
        await agree(follower, store)
        assert follower.snapshots == 1
        await put(store, [Text("bob", range(50)), Text("carol", range(30))])
        await agree(follower, store)
        await store.desk.remove("bob")
        await agree(follower, store)
        assert follower.snapshots == 1
        await follower.close()


async def test_f16_a_gap_is_replayed_and_a_long_one_begins_anew(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        follower = Follower(store.address)
        follower.start()
        await put(store, [Text("alice", range(40))])
        await agree(follower, store)
        await follower.stop()
        await put(store, [Text("bob", range(40))])
        follower.start()
        await agree(follower, store)
        assert follower.snapshots == 1
        await follower.stop()
        follower.seq = 10**6  # a number that this life never said
        await put(store, [Text("carol", range(40))])
        follower.start()
        await agree(follower, store)
        assert follower.snapshots == 2
        assert follower.seq == store.tiers.events.last_seq
        await follower.close()


async def test_f16_a_restart_on_the_same_address_begins_anew(tmp_path: Path) -> None:
    async with running_store(tmp_path, incarnation=1) as store:
        address = store.address
        await put(store, [Text("alice", range(40))])
        follower = Follower(address)
        follower.start()
        await agree(follower, store)
        await follower.stop()
    async with running_store(tmp_path, incarnation=2, listen=address) as store:
        follower.start()
        await settle(lambda: follower.incarnation == 2)
        await agree(follower, store)
        assert not follower.tiers["memory"]
        assert len(follower.tiers["disk"]) == 40
        await follower.close()


async def test_f16_a_follower_that_breaks_off_at_random_is_right_in_the_end(
    tmp_path: Path,
) -> None:
    draw = random.Random(16)
    async with running_store(tmp_path, memory_bytes=50_000, disk_bytes=4 << 20) as store:
        follower = Follower(store.address)
        for number in range(12):
            follower.start()
            texts = [Text("alice", range(100 * number, 100 * number + draw.randint(1, 30)))]
            await asyncio.gather(put(store, texts), asyncio.sleep(draw.random() * 0.05))
            if draw.random() < 0.3:
                await store.desk.remove("alice")
            await follower.stop()
        follower.start()
        await agree(follower, store)
        await follower.close()


async def test_what_is_damaged_leaves_the_index(tmp_path: Path) -> None:
    text = Text("alice", range(8))
    async with running_store(tmp_path) as store:
        await put(store, [text])
    (path,) = (tmp_path / "segments").glob("*.seg")
    data = bytearray(path.read_bytes())
    data[data.index(bytes(text.item(5).payload))] ^= 1
    path.write_bytes(data)
    async with running_store(tmp_path) as store:
        follower = Follower(store.address)
        follower.start()
        await agree(follower, store)
        assert len(follower.tiers["disk"]) == 8
        assert (await store.desk.verify()).corrupt == 1
        await agree(follower, store)
        assert BlockHash(text.chain[5]) not in follower.tiers["disk"]
        await follower.close()
