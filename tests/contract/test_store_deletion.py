"""Deleting a tenant: nothing of it is left or comes back, whatever was on its way."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from diptych.contract import store_pb2 as pb
from diptych.core.ids import WorkerId
from diptych.kvcache_store.client import StoreClient
from diptych.kvcache_store.tenants import Receipt
from diptych.kvcache_store.volume import Folder
from diptych.testing.clock import settle
from diptych.testing.stores import MASTER_KEY, RunningStore, Text, bring, running_store
from diptych.transport.channel import connect
from diptych.transport.frames import encode

ALICE, BOB = Text("alice", range(40)), Text("bob", range(40))


def client_of(store: RunningStore) -> StoreClient:
    return StoreClient([store.address], WorkerId("w"), lookup_s=5)


class Gate(Folder):
    """A folder whose reads and writes wait while it is shut."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_open = threading.Event()
        self.is_open.set()
        self.num_waiting = 0

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        self._pass()
        return super().read(name, offset, size_bytes)

    def create(self, name: str) -> Any:
        self._pass()
        return super().create(name)

    def _pass(self) -> None:
        self.num_waiting += 1
        assert self.is_open.wait(10)
        self.num_waiting -= 1


@pytest.mark.parametrize("encrypt", [True, False])
async def test_nothing_of_a_deleted_tenant_is_left_in_any_tier(
    tmp_path: Path, encrypt: bool
) -> None:
    async with running_store(tmp_path, encrypt=encrypt) as store:
        client = client_of(store)
        for text in (ALICE, BOB):
            await client.put(text.run(anchors=[39]), deadline_s=5, await_disk=True)
        receipt = Receipt(**json.loads(await store.desk.remove("alice")))
        assert (receipt.parts, receipt.segments) == (41, 1)
        assert receipt.key_destroyed == encrypt
        assert receipt.memory_bytes >= 41_000
        assert receipt.disk_bytes > 41_000
        assert receipt.is_genuine(MASTER_KEY)
        assert (await bring(client, ALICE)).num_leading == 0
        assert (await bring(client, BOB)).num_leading == 40
        assert store.tiers.disk is not None
        balance = store.tiers.disk.balance
        assert balance.free == store.tiers.disk.free_bytes
        await client.close()
    async with running_store(tmp_path, encrypt=encrypt) as store:
        client = client_of(store)
        assert (await bring(client, ALICE)).num_leading == 0
        assert (await bring(client, BOB)).num_leading == 40
        await client.close()


async def test_what_is_put_after_a_deletion_is_a_new_tenants(tmp_path: Path) -> None:
    async with running_store(tmp_path, encrypt=True) as store:
        client = client_of(store)
        await client.put(ALICE.run(), deadline_s=5, await_disk=True)
        await store.desk.remove("alice")
        await client.put(ALICE.run(0, 10), deadline_s=5, await_disk=True)
        assert (await bring(client, ALICE)).num_leading == 10
        await client.close()
    async with running_store(tmp_path, encrypt=True) as store:
        client = client_of(store)
        assert (await bring(client, ALICE)).num_leading == 10
        await client.close()


async def test_what_was_queued_for_the_disk_is_dropped(tmp_path: Path) -> None:
    volume = Gate(tmp_path / "segments")
    async with running_store(tmp_path, volume=volume) as store:
        client = client_of(store)
        volume.is_open.clear()
        await client.put(BOB.run(), deadline_s=5)
        await settle(lambda: volume.num_waiting == 1)  # the writer is in the middle of something
        await client.put(ALICE.run(), deadline_s=5)
        removing = asyncio.create_task(store.desk.remove("alice"))
        await asyncio.sleep(0)
        volume.is_open.set()
        await removing
        await store.tiers.flush()
        assert store.tiers.queue is not None
        assert store.tiers.queue.counts.dropped_deleted == 40
        assert {row.tenant for row in await store.desk.segments()} == {"bob"}
        await client.close()


async def test_a_read_that_was_under_way_brings_nothing_back(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        client = client_of(store)
        await client.put(ALICE.run(), deadline_s=5, await_disk=True)
        await client.close()
    volume = Gate(tmp_path / "segments")
    async with running_store(tmp_path, volume=volume) as store:
        client = client_of(store)
        volume.is_open.clear()
        reading = asyncio.create_task(bring(client, ALICE))
        await settle(lambda: volume.num_waiting >= 1)
        await store.desk.remove("alice")
        volume.is_open.set()
        assert (await reading).num_leading == 0
        assert len(store.tiers.memory) == 0
        await client.close()


async def test_a_put_that_was_under_way_is_not_taken(tmp_path: Path) -> None:
    whose = ALICE.whose
    announced = pb.PutUp(
        origin=pb.Origin(
            namespace=whose.namespace,
            layout_hash=whose.layout_hash,
            scope=whose.scope,
            tenant=whose.tenant,
        ),
        retention="chat",
        complete=True,
        parent=whose.scope,
        hashes=b"".join(ALICE.chain[:16]),
        exact=bytes(16),
    )
    async with running_store(tmp_path) as store:
        stream: Any = connect(store.address).stream_stream("/diptych.contract.Store/PutBlocks")()
        await stream.write(announced.SerializeToString())
        await stream.read()
        await stream.write(encode(0, [ALICE.item(i).part for i in range(8)], is_last=False))
        await stream.read()
        await store.desk.remove("alice")
        await stream.write(encode(1, [ALICE.item(i).part for i in range(8, 16)], is_last=True))
        await stream.read()
        last = pb.PutDown.FromString(await stream.read())
        assert last.stored.retention == "none"
        assert len(store.tiers.memory) == 0


async def test_a_crash_in_the_middle_of_a_deletion_finishes_it(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        client = client_of(store)
        for text in (ALICE, BOB):
            await client.put(text.run(), deadline_s=5, await_disk=True)
        await client.close()
        group = store.tiers.tenants.group_of("alice")
    (tmp_path / "tenants" / f"{group.hex()}.json").unlink()  # the first step, and then the crash
    async with running_store(tmp_path) as store:
        assert {row.tenant for row in await store.desk.segments()} == {"bob"}
