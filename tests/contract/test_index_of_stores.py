"""What a router knows of the cache tier, over real nodes, and what it makes of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from diptych.contract import store_pb2 as pb
from diptych.contract.store_pb2_grpc import StoreServicer, add_StoreServicer_to_server
from diptych.core.errors import Overloaded
from diptych.core.ids import WorkerId
from diptych.kvcache_store.client import StoreClient
from diptych.router.messages import BlockChanges, BlockTier, PrefillAt
from diptych.router.prefix_index import Overlap, PrefixIndex, keys_of
from diptych.router.store_news import StoreNews
from diptych.telemetry import metrics as m
from diptych.testing.clock import settle
from diptych.testing.house import House
from diptych.testing.links import link_to
from diptych.testing.stores import RunningStore, Text, bring, running_store
from diptych.transport.server import Server

SOON_S = 10.0
LONG = Text("alice", range(320))  # 20 segments


@asynccontextmanager
async def followed(*addresses: str) -> AsyncIterator[tuple[PrefixIndex, StoreNews]]:
    index = PrefixIndex()
    news = StoreNews(index)
    news.use(addresses)
    yield index, news
    await news.close()
    assert (index.num_in(BlockTier.HOST), index.num_in(BlockTier.DISK)) == (0, 0)


async def put(nodes: Sequence[RunningStore], *texts: Text) -> None:
    client = StoreClient([n.address for n in nodes], WorkerId("w"), lookup_s=5)
    for text in texts:
        await client.put(text.run(), deadline_s=10, await_disk=True)
    await client.close()


async def bring_all(address: str) -> None:
    client = StoreClient([address], WorkerId("w"), lookup_s=5)
    assert (await bring(client, LONG)).num_leading == 320
    await client.close()


def talk(number: int) -> Text:
    return Text("alice", range(number * 40, number * 40 + 40))


def overlap(index: PrefixIndex, text: Text) -> Overlap:
    return index.lookup(keys_of(text.chain), 0.0)


async def knows(index: PrefixIndex, *nodes: RunningStore) -> None:
    """Until it has what the nodes have, neither more nor less."""
    memory = sum(node.tiers.memory.num_blocks for node in nodes)
    disks = [node.tiers.disk for node in nodes if node.tiers.disk is not None]
    disk = sum(len(each.segments.blocks()) for each in disks)
    await settle(
        lambda: (index.num_in(BlockTier.HOST), index.num_in(BlockTier.DISK)) == (memory, disk),
        within_s=SOON_S,
    )


def states(news: StoreNews) -> dict[str, float]:
    return {r.labels[0]: r.value for r in news.readings() if r.metric is m.INDEX_STORES}


async def test_a_chain_over_several_nodes_is_known_as_one_and_a_lost_node_ends_it(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(AsyncExitStack()) for _ in range(2)]
        nodes = [
            await end.enter_async_context(
                running_store(tmp_path / str(i), incarnation=i + 1, snapshot_hashes=16)
            )
            for i, end in enumerate(ends)
        ]
        await put(nodes, LONG)
        sizes = [node.tiers.memory.num_blocks for node in nodes]
        assert min(sizes) > 0
        async with followed(*(node.address for node in nodes)) as (index, news):
            await knows(index, *nodes)
            assert overlap(index, LONG) == Overlap({}, 320, 0)
            await put(nodes, Text("bob", range(64)))  # after the snapshots, as news
            await knows(index, *nodes)
            assert overlap(index, Text("bob", range(64))).shared == 64
            await ends[1].aclose()
            await knows(index, nodes[0])
            assert overlap(index, LONG).shared < 320
            assert states(news) == {"followed": 1, "lost": 1}


async def test_f16_a_node_that_lives_anew_has_its_disk_and_what_is_read_is_in_memory(
    tmp_path: Path,
) -> None:
    async with running_store(tmp_path, incarnation=1) as store:
        address = store.address
        await put([store], LONG)
        async with followed(address) as (index, news):
            await knows(index, store)
            await store.desk.remove("alice")
            await knows(index, store)
            assert overlap(index, LONG) == Overlap()
            await put([store], LONG)
            await knows(index, store)
            assert overlap(index, LONG).shared == 320
    async with followed(address) as (index, news):
        await settle(lambda: states(news)["lost"] == 1, within_s=SOON_S)
        async with running_store(tmp_path, incarnation=2, listen=address) as store:
            await knows(index, store)
            assert overlap(index, LONG) == Overlap({}, 320, 320)
            assert states(news) == {"followed": 1, "lost": 0}
            await bring_all(address)
            await knows(index, store)
            assert overlap(index, LONG) == Overlap({}, 320, 0)


class Stumbling(StoreServicer):
    """A node whose news have gaps and end; it notes from where each watcher would go on."""

    def __init__(self, *scripts: list[pb.IndexNews]) -> None:
        self.asked: list[tuple[int, int]] = []
        self._scripts = list(scripts)

    def register(self, server: grpc.aio.Server) -> None:
        add_StoreServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.IndexNews]:
        self.asked.append((request.incarnation, request.seq))
        for message in self._scripts.pop(0):
            yield message
        if not self._scripts:
            await asyncio.Event().wait()
        raise Overloaded("the watcher does not keep up; it begins anew", code="watch_behind")


def said(life: int, seq: int, *numbers: int, came: bool = True, first: bool = False) -> Any:
    names = b"".join(number.to_bytes(16, "little") for number in numbers)
    return pb.IndexNews(
        incarnation=life, seq=seq, came=came, tier="memory", hashes=names, snapshot=first
    )


async def test_f16_a_gap_is_asked_for_and_who_is_cut_off_goes_on_where_it_was() -> None:
    node = Stumbling(
        [said(1, 5, 1, 2, first=True), said(1, 6, 3), said(1, 8, 9)],  # 7 is missing
        [said(1, 7, 4), said(1, 8, 1, came=False)],
        [said(1, 8, 1, came=False), said(1, 9, 5), said(2, 10, 6)],  # of whose life?
        [said(2, 3, 7, 8, first=True), said(2, 4, 7, came=False), said(2, 5, 9)],
    )
    async with (
        Server("127.0.0.1:0", [node.register], grace_s=0) as server,
        followed(server.address) as (index, news),
    ):
        await settle(lambda: index.lookup((9,), 0.0).shared == 1, within_s=SOON_S)
        assert node.asked == [(0, 0), (1, 6), (1, 8), (1, 9)]
        assert [n for n in range(10) if index.lookup((n,), 0.0).shared] == [8, 9]
        assert index.gaps_total == 3
        assert states(news) == {"followed": 1, "lost": 0}


async def test_f16_a_stream_that_breaks_costs_nothing_that_is_known(
    tmp_path: Path,
) -> None:
    async with (
        running_store(tmp_path, snapshot_hashes=8, memory_bytes=100_000) as store,
        link_to(store.address) as link,
        followed(link.address) as (index, _),
    ):
        for number in range(8):
            putting = asyncio.create_task(put([store], talk(number)))
            await settle(lambda: store.tiers.events.last_seq > 0)
            for _ in range(number):
                await asyncio.sleep(0)  # the put goes on, or is over
            link.cut()
            await putting
            await knows(index, store)
        memory = set(store.tiers.memory.blocks())
        for number in range(8):
            chain = talk(number).chain
            on_disk = sum(name not in memory for name in chain)
            assert index.lookup(keys_of(chain), 0.0) == Overlap({}, 40, on_disk)


async def test_nodes_come_and_go_while_the_router_runs(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path / "1", incarnation=1) as first,
        running_store(tmp_path / "2", incarnation=2) as second,
    ):
        await put([first], Text("alice", range(32)))
        await put([second], Text("bob", range(48)))
        async with followed() as (index, news):
            assert states(news) == {"followed": 0, "lost": 0}
            news.use([first.address])
            await knows(index, first)
            news.use([first.address, second.address])
            await knows(index, first, second)
            news.use([second.address])
            await knows(index, second)
            assert overlap(index, Text("alice", range(32))).shared == 0
            assert overlap(index, Text("bob", range(48))).shared == 48
            news.use([first.address])
            news.use([second.address])
            await knows(index, second)
            assert states(news) == {"followed": 1, "lost": 0}


async def test_a_prompt_that_only_the_tier_holds_goes_wherever_there_is_least_to_do(
    tmp_path: Path,
) -> None:
    """Fetching costs a fraction of computing: who computed it is hardly better than the others."""
    async with running_store(tmp_path) as store:
        await put([store], LONG)
        house = House("prefill-1", "prefill-2", "decode-1", slots=16)
        length, chain = 16 * 320 + 5, tuple(LONG.chain)

        def place() -> PrefillAt:
            answer = house.answers_to(house.want(length, hashes=chain))
            assert isinstance(answer, PrefillAt)
            return answer

        computed_it = house.registry.find("prefill-1")
        assert computed_it is not None
        held = BlockChanges(0, chain, (True,) * len(chain))
        house.dispatcher.announced("prefill-1", computed_it.join.incarnation, held)
        busy = house.want(2000)  # some 70 ms; the other worker has nothing to do
        while (first := house.answers_to(busy)) and first.rank.worker_id != "prefill-1":
            house.dispatcher.close(busy)
            busy = house.want(2000)
        assert place().rank.worker_id == "prefill-1"  # its queue is cheaper than 169 ms of prompt
        news = StoreNews(house.dispatcher.index)
        news.use([store.address])
        await knows(house.dispatcher.index, store)
        answer = place()
        assert answer.rank.worker_id == "prefill-2"
        assert "for 5 of 5125 tokens" in answer.reasons[0]
        await news.close()
