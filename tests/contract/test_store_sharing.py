"""Blocks through shared memory: the same answers as over gRPC, and the same care."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from diptych.core.errors import Refused
from diptych.core.ids import WorkerId
from diptych.kvcache_store import wire
from diptych.kvcache_store.client import Outcome, StoreClient, Transport
from diptych.kvcache_store.links import KEPT
from diptych.kvcache_store.messages import Fetch, WindowOffer
from diptych.testing.clock import settle
from diptych.testing.stores import RunningStore, Shelf, Text, bring, running_store
from diptych.transport.channel import connect
from diptych.transport.errors import from_rpc
from diptych.transport.frames import Fault, PartKind
from diptych.transport.window import SLOT_BYTES, Filled, Window

SHARE = "/diptych.contract.Store/ShareBlocks"
PROMPT = Text("alice", range(40))


def client_of(store: RunningStore, transport: Transport = Transport.SHM) -> StoreClient:
    return StoreClient([store.address], WorkerId("w"), lookup_s=5, transport=transport)


async def test_more_than_the_window_holds_goes_through_it(tmp_path: Path) -> None:
    large = Text("alice", range(600), size_bytes=60_000)  # 36 MB
    async with running_store(tmp_path) as store:
        client = client_of(store)
        outcome = await client.put(large.run(), deadline_s=20, await_disk=True)
        assert outcome == Outcome(sent=600, on_disk=600)
        hit = await client.lookup(large.whose, large.chain)
        shelf = Shelf(PartKind.BLOCK, 60_000)
        fetched = await client.get(hit, PartKind.BLOCK, range(600), shelf, deadline_s=20)
        assert fetched.num_leading == 600
        for index in (0, 69, 70, 599):
            data = bytes(large.item(index).payload)
            assert bytes(shelf.rooms[hit.chain[index]]) == data
        assert client.transports == {store.address: Transport.SHM}
        await client.close()


async def test_on_this_host_memory_is_shared_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        for transport, used in (
            (Transport.AUTO, Transport.SHM),
            (Transport.GRPC, Transport.GRPC),
        ):
            client = client_of(store, transport)
            await client.put(PROMPT.run(), deadline_s=5)
            assert (await bring(client, PROMPT)).num_leading == 40
            assert client.transports == {store.address: used}
            await client.close()


async def test_a_part_larger_than_a_slot_goes_by_grpc(tmp_path: Path) -> None:
    huge = Text("alice", range(2), size_bytes=SLOT_BYTES + 1)
    async with running_store(tmp_path) as store:
        client = client_of(store)
        assert (await client.put(huge.run(), deadline_s=10)).sent == 2
        assert (await bring(client, huge)).num_leading == 2
        await client.close()


async def test_where_memory_cannot_be_shared_auto_falls_back_and_shm_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_store(tmp_path) as store:
        monkeypatch.setattr(Window, "attach", classmethod(_refuse))
        auto, shm = client_of(store, Transport.AUTO), client_of(store)
        await auto.put(PROMPT.run(), deadline_s=5)
        assert (await bring(auto, PROMPT)).num_leading == 40
        assert auto.transports == {store.address: Transport.GRPC}
        assert await shm.put(Text("bob", range(4)).run(), deadline_s=5) == Outcome(dropped=4)
        assert (await bring(shm, PROMPT)).num_leading == 0
        assert shm.weights  # the node is there; only this way is not
        await auto.close()
        await shm.close()


def num_windows() -> int:
    """Descriptors of windows that this process has, at either end."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "memfd:diptych-window" in os.readlink(f"/proc/self/fd/{name}")
    return found


def _refuse(cls: type[Window], *args: Any) -> Window:
    raise Refused("in a test", code="no_shared_memory")


async def test_many_at_once_have_a_window_each_and_few_are_kept(tmp_path: Path) -> None:
    texts = [Text("alice", range(100 * i, 100 * i + 20)) for i in range(12)]
    async with running_store(tmp_path) as store:
        client = client_of(store)
        await asyncio.gather(*(client.put(text.run(), deadline_s=10) for text in texts))
        brought = await asyncio.gather(*(bring(client, text) for text in texts))
        assert [one.num_leading for one in brought] == [20] * 12
        kept = range(3, 3 * KEPT + 1)  # of both sides, each of which closes its own
        await settle(lambda: num_windows() in kept, within_s=10)
        await client.close()
        await settle(lambda: num_windows() == 0)


async def test_a_store_that_restarts_is_attached_to_anew(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        address = store.address
        client = client_of(store)
        await client.put(PROMPT.run(), deadline_s=5, await_disk=True)
        assert (await bring(client, PROMPT)).num_leading == 40
    async with running_store(tmp_path, listen=address, incarnation=9):
        await bring(client, PROMPT)  # which may have met the old window's end
        await settle(lambda: address in client.weights, within_s=10)
        assert (await bring(client, PROMPT)).num_leading == 40
        await client.close()


class Peer:
    """Somebody who speaks over a window as they like."""

    def __init__(self, address: str) -> None:
        self.window = Window.create()
        self.stream: Any = connect(address).stream_stream(SHARE)()

    async def say(self, message: Any) -> None:
        await self.stream.write(wire.share_up_to_bytes(message))

    async def hear(self) -> Any:
        return wire.share_down_from_bytes(await self.stream.read())

    async def attach(self) -> None:
        window = self.window
        await self.say(
            WindowOffer(os.getpid(), window.file, window.num_slots, window.slot_bytes, window.nonce)
        )
        assert await self.hear() is None

    async def end(self) -> str:
        """The code with which the store ends it."""
        async with asyncio.timeout(5):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await self.stream.read() is not grpc.aio.EOF:
                    pass
        self.window.close()
        return from_rpc(caught.value).code


def announcement(text: Text, count: int) -> bytes:
    return wire.put_to_bytes(
        text.whose,
        "chat",
        text.chain[:count],
        [True] * count,
        [],
        parent=text.whose.scope,
        first_index=0,
        is_complete=True,
        await_disk=False,
    )


async def test_a_slot_that_changed_after_it_was_sent_is_refused(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        peer = Peer(store.address)
        await peer.attach()
        await peer.say(announcement(PROMPT, 4))
        await peer.hear()
        parts = [PROMPT.item(i).part for i in range(4)]
        filled = peer.window.fill(0, parts, PartKind.BLOCK, is_last=True)
        peer.window.slot(0)[1500] ^= 1
        await peer.say(filled)
        assert await peer.end() == Fault.CHECKSUM
        assert len(store.tiers.memory) == 0


async def test_what_was_taken_does_not_change_with_the_window(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        peer = Peer(store.address)
        await peer.attach()
        await peer.say(announcement(PROMPT, 4))
        await peer.hear()
        parts = [PROMPT.item(i).part for i in range(4)]
        await peer.say(peer.window.fill(0, parts, PartKind.BLOCK, is_last=True))
        assert await peer.hear() == 0
        peer.window.slot(0)[:4000] = bytes(4000)
        client = client_of(store, Transport.GRPC)
        assert (await bring(client, Text("alice", range(4)))).num_leading == 4
        await client.close()
        peer.stream.cancel()
        peer.window.close()


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([0], "invalid_value"),
        ([Fetch(PROMPT.whose, PartKind.BLOCK, (PROMPT.chain[0],), 0)], "invalid_value"),
        ([Fetch(PROMPT.whose, PartKind.BLOCK, (PROMPT.chain[0],), 2**31)], "invalid_value"),
        (
            [
                announcement(PROMPT, 4),
                Filled(99, PartKind.BLOCK, (PROMPT.chain[0],), (1,), (10,), True),
            ],
            "no_shared_memory",
        ),
        (
            [
                announcement(PROMPT, 4),
                Filled(0, PartKind.BLOCK, (PROMPT.chain[0],), (1,), (2**31,), True),
            ],
            Fault.LENGTH,
        ),
        (
            [
                announcement(PROMPT, 4),
                Filled(0, PartKind.BLOCK, (PROMPT.chain[9],), (1,), (10,), True),
            ],
            Fault.UNKNOWN,
        ),
    ],
)
async def test_a_peer_that_does_not_keep_to_it_is_cut_off(
    tmp_path: Path, messages: Sequence[Any], code: str
) -> None:
    async with running_store(tmp_path) as store:
        peer = Peer(store.address)
        await peer.attach()
        for message in messages:
            await peer.say(message)
        assert await peer.end() == code


async def test_a_peer_that_frees_no_slot_is_given_up(tmp_path: Path) -> None:
    large = Text("alice", range(400), size_bytes=60_000)
    async with running_store(tmp_path, silence_s=0.3) as store:
        client = client_of(store)
        await client.put(large.run(), deadline_s=20)
        await client.close()
        peer = Peer(store.address)
        await peer.attach()
        await peer.say(Fetch(large.whose, PartKind.BLOCK, tuple(large.chain), 60_000))
        assert await peer.end() == "no_credit"


async def test_a_stream_without_a_window_is_refused(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        peer = Peer(store.address)
        await peer.say(Fetch(PROMPT.whose, PartKind.BLOCK, (PROMPT.chain[0],), 10))
        assert await peer.end() == "invalid_value"
